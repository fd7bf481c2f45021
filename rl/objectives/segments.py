"""Sums over the segments of a packed row. A sequence, for every part of the family, is a segment."""

from __future__ import annotations

import torch
from torch import Tensor

from rl.objectives.base import TokenBatch

LOG_CLAMP = 20.0
"""Differences of log-probs are clamped here before exp: e^20 is out of any useful range, inf is not finite."""
FLOOR = -1e4
"""Log-probs are raised to this first, so that the difference of two infinities is a number."""


def log_ratio(logprobs: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """``logprobs - other`` within ``+-LOG_CLAMP``, and where it was clamped (there its gradient is 0)."""
    difference = logprobs.clamp(min=FLOOR) - other.clamp(min=FLOOR)
    return difference.clamp(-LOG_CLAMP, LOG_CLAMP), difference.abs() > LOG_CLAMP


def lengths(batch: TokenBatch) -> Tensor:
    """``[S]`` tokens of each segment, trained or not."""
    return (batch.cu_seqlens[1:] - batch.cu_seqlens[:-1]).long()


def segment_ids(batch: TokenBatch) -> Tensor:
    """``[T]`` index of the segment of each token."""
    sizes = lengths(batch)
    return torch.repeat_interleave(torch.arange(len(sizes), device=sizes.device), sizes)


def spread(values: Tensor, batch: TokenBatch) -> Tensor:
    """``[S]`` values at each token of their segment: ``[T]``."""
    return torch.repeat_interleave(values, lengths(batch))


def segment_sum(values: Tensor, batch: TokenBatch) -> Tensor:
    """``[S]`` sums of ``[T]`` values over trained tokens; what lies outside the mask may be anything."""
    inside = torch.where(batch.mask > 0, values, torch.zeros_like(values))
    return inside.new_zeros(len(batch.cu_seqlens) - 1).index_add(0, segment_ids(batch), inside)


def segment_mean(values: Tensor, batch: TokenBatch) -> Tensor:
    """``[S]`` means over trained tokens; 0 for a segment without any."""
    count = segment_sum(torch.ones_like(values), batch)
    return segment_sum(values, batch) / count.clamp(min=1)


def last_trained(batch: TokenBatch) -> Tensor:
    """Indices of the last trained token of every segment that has one."""
    trained = (batch.mask > 0).nonzero().squeeze(-1)
    ids = segment_ids(batch)[trained]
    final = torch.ones_like(ids, dtype=torch.bool)
    final[:-1] = ids[1:] != ids[:-1]
    return trained[final]


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Sum over trained tokens, detached; what lies outside the mask may be anything."""
    return torch.where(mask > 0, values.detach(), torch.zeros_like(values)).sum()
