"""Packed rows as tensors: segments one after another, position ids restarting, nothing padded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rl.training.batch import TrainRow


@dataclass(slots=True)
class PackedRow:
    """What the model's forward needs of ``T`` tokens, ``N`` of which are chosen."""

    input_ids: Tensor
    """``[T]``."""
    position_ids: Tensor
    """``[T]``, from 0 in each segment."""
    cu_seqlens: Tensor
    """``[S + 1]`` int32."""
    longest: int
    chosen: Tensor
    """``[N]`` indices of the tokens whose log-probs are wanted; never the first of a segment."""
    temperature: Tensor
    """``[N]``."""

    @property
    def predict(self) -> Tensor:
        """``[N]`` indices of the positions that predict them: the label shift stays inside segments."""
        return self.chosen - 1

    @property
    def targets(self) -> Tensor:
        return self.input_ids[self.chosen]

    def scatter(self, values: Tensor) -> Tensor:
        """``[N]`` values at their tokens, 0 elsewhere: ``[T]``."""
        return torch.zeros(len(self.input_ids), dtype=values.dtype, device=values.device).index_copy(
            0, self.chosen, values
        )


def pack_tokens(
    rows: Sequence[np.ndarray], chosen: Sequence[np.ndarray], temperatures: Sequence[float], device: torch.device
) -> PackedRow:
    """One packed row from token rows, the mask of chosen tokens and the temperature of each."""
    lengths = [len(row) for row in rows]
    mask = torch.from_numpy(np.concatenate(chosen)).nonzero().squeeze(-1)
    per_token = np.repeat(np.asarray(temperatures, dtype=np.float32), lengths)
    return PackedRow(
        input_ids=torch.from_numpy(np.concatenate(rows).astype(np.int64)).to(device),
        position_ids=torch.cat([torch.arange(n) for n in lengths]).to(device),
        cu_seqlens=torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32, device=device),
        longest=max(lengths),
        chosen=mask.to(device),
        temperature=torch.from_numpy(per_token)[mask].to(device),
    )


def empty_row(device: torch.device) -> PackedRow:
    """A row of two tokens with nothing chosen: keeps collectives in step on a rank with no work."""
    return pack_tokens([np.zeros(2, np.int64)], [np.zeros(2, bool)], [1.0], device)


def pack_rows(rows: Sequence[TrainRow], device: torch.device) -> PackedRow:
    """One packed row from training rows; the trained tokens are chosen."""
    return pack_tokens(
        [row.segment.token_ids for row in rows],
        [row.segment.loss_mask for row in rows],
        [row.segment.temperature for row in rows],
        device,
    )
