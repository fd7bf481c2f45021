"""Masks that are decided once a step, over the global batch. They change numerators only."""

from __future__ import annotations

import torch
from torch import Tensor

from rl.objectives.base import Reduce, TokenBatch

HIGHEST_ENTROPY = 16.0
"""Nats; above the log of any vocabulary."""
BINS, LEVELS = 256, 3


def top_entropy(batch: TokenBatch, reduce: Reduce, share: float) -> Tensor:
    """1 on the ``share`` of the global batch's trained tokens with the highest entropy (arXiv 2506.01939): ``[T]``."""
    assert batch.entropy is not None, "the entropy mask needs entropies before the step"
    limit = quantile(batch.entropy, batch.mask, 1 - share, reduce)
    return ((batch.entropy >= limit) & (batch.mask > 0)).to(batch.mask.dtype)


def quantile(values: Tensor, mask: Tensor, q: float, reduce: Reduce) -> float:
    """A number below which lies the share ``q`` of all ranks' trained values, to 16 / 256^3 = 1e-6.

    Counts go over the ranks, not values: three histograms, each of one bin of the last.
    """
    inside = values[mask > 0].double().clamp(0, HIGHEST_ENTROPY)
    target = q * float(reduce(mask.double().sum()[None])[0])
    low, width, below = 0.0, HIGHEST_ENTROPY, 0.0
    for _ in range(LEVELS):
        width /= BINS
        index = ((inside - low) / width).floor().long()
        here = index[(index >= 0) & (index < BINS)]
        counts = reduce(torch.bincount(here, minlength=BINS).double())
        reached = below + counts.cumsum(0)
        bin_ = min(int((reached <= target).sum()), BINS - 1)
        below = float(reached[bin_] - counts[bin_])
        low += bin_ * width
    return low
