"""Policy losses: per-token terms from log-probs and advantages. Pure functions of tensors ``[T]``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rl.objectives.base import TokenBatch, TokenLoss
from rl.objectives.kl import LOG_CLAMP

PolicyLoss = Callable[..., TokenLoss]


def ratio_of(logprobs: Tensor, old: Tensor) -> tuple[Tensor, Tensor]:
    """Importance ratio and which tokens had it clamped, so that an infinite ratio is finite and counted."""
    difference = logprobs - old
    return torch.exp(difference.clamp(-LOG_CLAMP, LOG_CLAMP)), difference.abs() > LOG_CLAMP


def behaviour(batch: TokenBatch) -> Tensor:
    """Log-probs in the ratio's denominator: the trainer's own before the step, else those of the rollout."""
    return batch.rollout_logprobs if batch.old_logprobs is None else batch.old_logprobs


def ppo_clip(
    batch: TokenBatch, *, clip_low: float = 0.2, clip_high: float = 0.2, dual_clip: float | None = None
) -> TokenLoss:
    """max(-r A, -clip(r, 1 - low, 1 + high) A): PPO, arXiv 1707.06347; apart bounds: DAPO, arXiv 2503.14476.

    Args:
        dual_clip: for negative advantages, bounds the loss at ``-dual_clip * A`` (arXiv 1912.09729).
    """
    ratio, clamped = ratio_of(batch.logprobs, behaviour(batch))
    plain = -ratio * batch.advantages
    bounded = -ratio.clamp(1 - clip_low, 1 + clip_high) * batch.advantages
    loss = torch.maximum(plain, bounded)
    if dual_clip is not None:
        loss = torch.where(batch.advantages < 0, torch.minimum(loss, -dual_clip * batch.advantages), loss)
    # Counted where the clip takes the gradient away, which depends on the advantage's sign.
    high = (ratio > 1 + clip_high) & (batch.advantages > 0)
    low = (ratio < 1 - clip_low) & (batch.advantages < 0)
    return _with_metrics(loss, ratio, clamped, batch, high=high, low=low)


def reinforce(batch: TokenBatch) -> TokenLoss:
    """-r A with the ratio as a weight; on policy this is REINFORCE's gradient."""
    ratio, clamped = ratio_of(batch.logprobs, behaviour(batch))
    return _with_metrics(-ratio * batch.advantages, ratio, clamped, batch)


def _with_metrics(
    loss: Tensor,
    ratio: Tensor,
    clamped: Tensor,
    batch: TokenBatch,
    high: Tensor | None = None,
    low: Tensor | None = None,
) -> TokenLoss:
    mask, count = batch.mask, batch.mask.sum()
    detached = ratio.detach()

    def mean(values: Tensor) -> tuple[Tensor, Tensor]:
        return (values * mask).sum().detach(), count

    metrics: dict[str, Any] = {
        "policy/ratio_mean": mean(detached),
        "policy/ratio_clamped_share": mean(clamped.float()),
        "policy/kl": mean(_drift(batch)),
    }
    if high is not None and low is not None:
        metrics |= {"policy/clip_fraction_high": mean(high.float()), "policy/clip_fraction_low": mean(low.float())}
    inside = detached[mask > 0]
    maxima = {"policy/ratio_max": inside.max()} if inside.numel() else {}
    return TokenLoss(loss, metrics, maxima)


def _drift(batch: TokenBatch) -> Tensor:
    """k3 estimate of KL(old || now): how far the update has gone from what sampled the tokens."""
    difference = (batch.logprobs.detach() - behaviour(batch)).clamp(-LOG_CLAMP, LOG_CLAMP)
    return torch.exp(difference) - 1 - difference


POLICY_LOSSES: dict[str, PolicyLoss] = {"ppo_clip": ppo_clip, "reinforce": reinforce}
