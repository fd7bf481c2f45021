"""Policy losses: per-token terms from log-probs and advantages. Pure functions of tensors ``[T]``.

A policy loss is ``fn(batch, **options) -> TokenLoss``. The sequence-level ones (GSPO, GMPO) give
each token of a segment the segment's term: `sequence_mean` is their aggregation.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rl.objectives.base import TokenBatch, TokenLoss
from rl.objectives.segments import log_ratio, masked_sum, segment_mean, spread

PolicyLoss = Callable[..., TokenLoss]


def behaviour(batch: TokenBatch) -> Tensor:
    """Log-probs in the ratio's denominator: the trainer's own before the step, else those of the rollout."""
    return batch.rollout_logprobs if batch.old_logprobs is None else batch.old_logprobs


def ppo_clip(
    batch: TokenBatch, *, clip_low: float = 0.2, clip_high: float = 0.2, dual_clip: float | None = None
) -> TokenLoss:
    """max(-r A, -clip(r, 1 - low, 1 + high) A): PPO, arXiv 1707.06347; apart bounds: DAPO, arXiv 2503.14476.

    Args:
        dual_clip: for negative advantages, bounds the loss at ``-dual_clip * A`` (arXiv 1912.09729).

    Raises:
        ValueError: ``dual_clip`` is not above 1.
    """
    if dual_clip is not None and dual_clip <= 1:
        raise ValueError(f"dual_clip must be above 1, but is {dual_clip}")
    difference, clamped = log_ratio(batch.logprobs, behaviour(batch))
    ratio = torch.exp(difference)
    loss = _clipped(ratio, batch.advantages, clip_low, clip_high)
    if dual_clip is not None:
        loss = torch.where(batch.advantages < 0, torch.minimum(loss, -dual_clip * batch.advantages), loss)
    return _measured(loss, ratio, clamped, batch, *_clip_flags(ratio, batch, clip_low, clip_high))


def reinforce(batch: TokenBatch) -> TokenLoss:
    """-r A with the ratio as a weight; on policy this is REINFORCE's gradient."""
    difference, clamped = log_ratio(batch.logprobs, behaviour(batch))
    ratio = torch.exp(difference)
    return _measured(-ratio * batch.advantages, ratio, clamped, batch)


def gspo(batch: TokenBatch, *, clip_low: float = 3e-4, clip_high: float = 4e-4) -> TokenLoss:
    """PPO's clip on the ratio of whole sequences, (pi / pi_old)^(1 / length): GSPO, arXiv 2507.18071."""
    difference, clamped = log_ratio(batch.logprobs, behaviour(batch))
    ratio = spread(torch.exp(segment_mean(difference, batch)), batch)
    loss = _clipped(ratio, batch.advantages, clip_low, clip_high)
    return _measured(loss, ratio, clamped, batch, *_clip_flags(ratio, batch, clip_low, clip_high))


def gmpo(batch: TokenBatch, *, clip: float = 0.4) -> TokenLoss:
    """Geometric mean of the tokens' clipped ratios, log ratios within ``+-clip``: GMPO, arXiv 2507.20673."""
    difference, clamped = log_ratio(batch.logprobs, behaviour(batch))
    sign = torch.sign(batch.advantages)
    least = torch.minimum(sign * difference, (sign * difference).clamp(-clip, clip))
    ratio = spread(torch.exp(segment_mean(sign * least, batch)), batch)
    high = (difference > clip) & (batch.advantages > 0)
    low = (difference < -clip) & (batch.advantages < 0)
    return _measured(-ratio * batch.advantages, ratio, clamped, batch, high, low)


def cispo(batch: TokenBatch, *, cap: float = 5.0, floor: float = 0.0) -> TokenLoss:
    """-stop_gradient(clip(r)) A log pi: clipped weights, no token loses its gradient: CISPO, arXiv 2506.13585.

    Args:
        cap, floor: bounds of the ratio itself.
    """
    difference, clamped = log_ratio(batch.logprobs, behaviour(batch))
    ratio = torch.exp(difference.detach())
    loss = -ratio.clamp(floor, cap) * batch.advantages * batch.logprobs
    return _measured(loss, ratio, clamped, batch, ratio > cap, ratio < floor)


def nll(batch: TokenBatch) -> TokenLoss:
    """-A log pi: maximum likelihood of the accepted trajectories (RFT, SFT), no ratio."""
    difference, clamped = log_ratio(batch.logprobs, behaviour(batch))
    return _measured(-batch.advantages * batch.logprobs, torch.exp(difference.detach()), clamped, batch)


def _clipped(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    return torch.maximum(-ratio * advantages, -ratio.clamp(1 - low, 1 + high) * advantages)


def _clip_flags(ratio: Tensor, batch: TokenBatch, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Where the clip takes the gradient away, which depends on the advantage's sign."""
    return (ratio > 1 + high) & (batch.advantages > 0), (ratio < 1 - low) & (batch.advantages < 0)


def _measured(
    loss: Tensor,
    ratio: Tensor,
    clamped: Tensor,
    batch: TokenBatch,
    high: Tensor | None = None,
    low: Tensor | None = None,
) -> TokenLoss:
    mask, count, detached = batch.mask, batch.mask.sum(), ratio.detach()
    # k3 estimate of KL(old || now): how far the update has gone from what sampled the tokens.
    drift, _ = log_ratio(batch.logprobs.detach(), behaviour(batch))
    metrics = {
        "policy/ratio_mean": (masked_sum(detached, mask), count),
        "policy/ratio_clamped_share": (masked_sum(clamped.to(mask.dtype), mask), count),
        "policy/kl": (masked_sum(torch.exp(drift) - 1 - drift, mask), count),
    }
    for name, flags in (("high", high), ("low", low)):
        if flags is not None:
            metrics[f"policy/clip_fraction_{name}"] = (masked_sum(flags.to(mask.dtype), mask), count)
    inside = detached[mask > 0]
    out = TokenLoss(loss, metrics)
    if inside.numel():
        out.maxima["policy/ratio_max"], out.minima["policy/ratio_min"] = inside.max(), inside.min()
    return out


POLICY_LOSSES: dict[str, PolicyLoss] = {
    "ppo_clip": ppo_clip,
    "reinforce": reinforce,
    "gspo": gspo,
    "gmpo": gmpo,
    "cispo": cispo,
    "nll": nll,
}
