"""The value loss of PPO."""

from __future__ import annotations

import torch

from rl.objectives.base import TokenBatch, TokenLoss
from rl.objectives.segments import masked_sum


def value_loss(batch: TokenBatch, *, clip: float | None = None) -> TokenLoss:
    """(V - R)^2 / 2 of each token, with returns R from before the step.

    Args:
        clip: the larger of this and the same with V kept within ``clip`` of the old value (PPO's reference code).
    """
    assert batch.values is not None, "the value loss needs values"
    wanted = batch.extra["returns"]
    loss = 0.5 * (batch.values - wanted) ** 2
    mask, count = batch.mask, batch.mask.sum()
    metrics = {}
    if clip is not None:
        old = batch.extra["old_values"]
        near = old + (batch.values - old).clamp(-clip, clip)
        clipped = 0.5 * (near - wanted) ** 2
        metrics["value/clip_fraction"] = (masked_sum((clipped > loss).to(mask.dtype), mask), count)
        loss = torch.maximum(loss, clipped)
    metrics["value/loss"] = (masked_sum(loss, mask), count)
    metrics["value/mean"] = (masked_sum(batch.values, mask), count)
    metrics["value/return_mean"] = (masked_sum(wanted, mask), count)
    return TokenLoss(loss, metrics)
