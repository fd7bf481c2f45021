"""Aggregation: per-token weights whose weighted sum over all micro-batches and ranks is the loss.

Denominators are counts over the whole batch of one update, taken before it is split, so the loss
does not depend on micro-batch size, packing, ranks or accumulation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rl.training.batch import Counts


def token_weights(
    name: str,
    mask: Tensor,
    cu_seqlens: Tensor,
    *,
    trajectory_tokens: Tensor,
    group_tokens: Tensor,
    counts: Counts,
    constant_length: int,
) -> Tensor:
    """Weights ``[T]``, 0 outside the mask.

    Args:
        name: ``token_mean``: 1 / tokens of the batch.
            ``sequence_mean``: 1 / (tokens of the trajectory x trajectories): each trajectory counts alike.
            ``constant_length``: 1 / (trajectories x constant): token sums over a constant (Dr. GRPO).
            ``group_mean``: 1 / (tokens of the group x groups): each group counts alike.
        mask: ``[T]``, 1 on trained tokens.
        cu_seqlens: ``[S + 1]``.
        trajectory_tokens: ``[S]``, trained tokens of the whole trajectory that each segment belongs to.
        group_tokens: ``[S]``, trained tokens of its group.
        counts: of the update, over all ranks.
        constant_length: divisor of ``constant_length``.
    """
    if name == "token_mean":
        return mask / max(1, counts.tokens)
    lengths = (cu_seqlens[1:] - cu_seqlens[:-1]).long()
    if name == "sequence_mean":
        per_segment = 1.0 / (trajectory_tokens.clamp(min=1).to(mask.dtype) * max(1, counts.sequences))
    elif name == "constant_length":
        per_segment = torch.ones_like(lengths, dtype=mask.dtype) / (max(1, counts.sequences) * constant_length)
    elif name == "group_mean":
        per_segment = 1.0 / (group_tokens.clamp(min=1).to(mask.dtype) * max(1, counts.groups))
    else:
        raise ValueError(f"no aggregation {name!r}; known: {', '.join(AGGREGATIONS)}")
    return mask * torch.repeat_interleave(per_segment, lengths)


AGGREGATIONS = {
    "token_mean": "mean over all tokens of the update (DAPO)",
    "sequence_mean": "mean over trajectories of their token means (GRPO as published)",
    "constant_length": "mean over trajectories of their token sums over a constant (Dr. GRPO)",
    "group_mean": "mean over groups of their token means",
}
