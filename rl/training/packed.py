"""Packed rows as tensors: segments one after another, nothing padded, shared prompts run once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl.training.attention import Tree, make_plan
from rl.training.batch import TrainRow

SHARED_GAIN = 0.1
"""Prompts are shared where that spares at least this share of the row's tokens."""
LONGEST_BRANCH = 4096
"""Branches need a mask of queries times keys: longer responses keep their own copy of the prompt."""


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """What the trunk is called with: ``U`` tokens, fewer than the row has where prompts are shared."""

    input_ids: Tensor
    """``[U]``."""
    position_ids: Tensor
    """``[U]``."""
    predict: Tensor
    """``[N]`` indices into ``[U]`` of the positions that predict the chosen tokens."""
    attention: dict[str, Any]
    """Keyword arguments that tell the attention function of the segments."""


@dataclass(slots=True)
class PackedRow:
    """``T`` tokens of ``S`` segments, ``N`` of which are chosen."""

    input_ids: Tensor
    """``[T]``."""
    cu_seqlens: Tensor
    """``[S + 1]`` int32."""
    chosen: Tensor
    """``[N]`` indices of the tokens whose log-probs are wanted; never the first of a segment."""
    temperature: Tensor
    """``[N]``."""
    stems: list[int]
    """``[S]`` tokens before a segment's first chosen one: its prompt."""
    _inputs: dict[bool, ModelInputs] = field(default_factory=dict)

    @property
    def targets(self) -> Tensor:
        """``[N]`` ids of the chosen tokens."""
        return self.input_ids[self.chosen]

    def scatter(self, values: Tensor) -> Tensor:
        """``[N]`` values at their tokens, 0 elsewhere: ``[T]``."""
        return torch.zeros(len(self.input_ids), dtype=values.dtype, device=values.device).index_copy(
            0, self.chosen, values
        )

    def inputs(self, *, planned: bool) -> ModelInputs:
        """The trunk's arguments.

        Args:
            planned: for ``hone_packed``, which can share prompts; else for attention that knows
                segments by ``cu_seq_lens``.
        """
        if planned not in self._inputs:
            self._inputs[planned] = self._planned() if planned else self._plain()
        return self._inputs[planned]

    def _plain(self) -> ModelInputs:
        lengths = (self.cu_seqlens[1:] - self.cu_seqlens[:-1]).tolist()
        positions = torch.cat([torch.arange(n) for n in lengths]).to(self.input_ids.device)
        bounds = dict(cu_seq_lens_q=self.cu_seqlens, cu_seq_lens_k=self.cu_seqlens)
        longest = dict(max_length_q=max(lengths), max_length_k=max(lengths))
        return ModelInputs(self.input_ids, positions, self.chosen - 1, bounds | longest)

    def _planned(self) -> ModelInputs:
        device = self.input_ids.device
        ids, bounds = self.input_ids.cpu().numpy(), self.cu_seqlens.tolist()
        trees: list[Tree] = []
        kept: list[np.ndarray] = []  # indices into [T] that the trunk sees
        where = np.zeros(len(ids), np.int64)  # [T] -> [U]
        at = 0
        for members in _families(ids, bounds, self.stems):
            start, stem = bounds[members[0]], self.stems[members[0]]
            lone = len(members) == 1
            branches = () if lone else tuple(bounds[i + 1] - bounds[i] - stem for i in members)
            own = bounds[members[0] + 1] - start if lone else stem
            trees.append(Tree(at, own, branches))
            kept.append(np.arange(start, start + own))
            where[start : start + own] = np.arange(at, at + own)
            first, at = at, at + own
            for i, branch in zip(members, branches, strict=False):
                where[bounds[i] : bounds[i] + stem] = np.arange(first, first + stem)
                where[bounds[i] + stem : bounds[i + 1]] = np.arange(at, at + branch)
                kept.append(np.arange(bounds[i] + stem, bounds[i + 1]))
                at += branch
        offsets = np.concatenate([np.arange(end - start) for start, end in itertools.pairwise(bounds)])
        chosen = self.chosen.cpu().numpy()
        seen = np.concatenate(kept)
        return ModelInputs(
            self.input_ids[torch.from_numpy(seen).to(device)],
            torch.from_numpy(offsets[seen]).to(device),
            torch.from_numpy(where[chosen - 1]).to(device),
            {"hone_plan": make_plan(trees, device)},
        )


def _families(ids: np.ndarray, bounds: Sequence[int], stems: Sequence[int]) -> list[list[int]]:
    """Neighbouring segments with the same prompt, where sharing it is worth the trouble."""
    families: list[list[int]] = []
    for i, stem in enumerate(stems):
        if families:
            j = families[-1][0]
            longest = max(bounds[i + 1] - bounds[i], bounds[j + 1] - bounds[j]) - stem
            mine, first = (ids[bounds[x] : bounds[x] + stem] for x in (i, j))
            if stem and stems[j] == stem and longest <= LONGEST_BRANCH and np.array_equal(mine, first):
                families[-1].append(i)
                continue
        families.append([i])
    spared = sum((len(members) - 1) * stems[members[0]] for members in families)
    return families if spared >= SHARED_GAIN * len(ids) else [[i] for i in range(len(stems))]


def pack_tokens(
    rows: Sequence[np.ndarray], chosen: Sequence[np.ndarray], temperatures: Sequence[float], device: torch.device
) -> PackedRow:
    """One packed row from token rows, the mask of chosen tokens and the temperature of each."""
    lengths = [len(row) for row in rows]
    mask = torch.from_numpy(np.concatenate(chosen)).nonzero().squeeze(-1)
    per_token = np.repeat(np.asarray(temperatures, dtype=np.float32), lengths)
    return PackedRow(
        input_ids=torch.from_numpy(np.concatenate(rows).astype(np.int64)).to(device),
        cu_seqlens=torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32, device=device),
        chosen=mask.to(device),
        temperature=torch.from_numpy(per_token)[mask].to(device),
        stems=[int(c.argmax()) if c.any() else 0 for c in chosen],
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
