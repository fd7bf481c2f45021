"""Corrections of the gap between the engine that sampled and the trainer: weights on the policy term.

The weight is pi_trainer / pi_engine of the sampled token, or of the whole sequence, both under the
weights before the step. Truncated importance sampling (TIS) caps it (Yao et al., 2025, "Your efficient
RL framework secretly brings you off-policy RL training"); masked importance sampling (MIS) leaves out
what is outside its bounds (arXiv 2510.26788 compares both). Only the numerator changes: denominators
still count every token.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rl.objectives.base import TokenBatch
from rl.objectives.segments import log_ratio, segment_sum, spread

Correction = Callable[..., tuple[Tensor, Tensor]]
"""``fn(batch, **bounds)``: detached weights ``[T]``, and the tokens ``[T]`` that the bounds changed."""


def tis_token(batch: TokenBatch, *, cap: float = 2.0) -> tuple[Tensor, Tensor]:
    """min(w, cap) for each token."""
    return _truncated(_token_weights(batch), cap)


def tis_sequence(batch: TokenBatch, *, cap: float = 2.0) -> tuple[Tensor, Tensor]:
    """min(w, cap) with w of the whole sequence."""
    return _truncated(_sequence_weights(batch), cap)


def mis_token(batch: TokenBatch, *, low: float = 0.5, high: float = 2.0) -> tuple[Tensor, Tensor]:
    """w where it is within the bounds, else 0, for each token."""
    return _masked(_token_weights(batch), low, high)


def mis_sequence(batch: TokenBatch, *, low: float = 0.5, high: float = 2.0) -> tuple[Tensor, Tensor]:
    """w of the whole sequence where it is within the bounds, else 0."""
    return _masked(_sequence_weights(batch), low, high)


def _log_gap(batch: TokenBatch) -> Tensor:
    assert batch.old_logprobs is not None, "a correction needs the trainer's log-probs before the step"
    return log_ratio(batch.old_logprobs.detach(), batch.rollout_logprobs)[0]


def _token_weights(batch: TokenBatch) -> Tensor:
    return torch.exp(_log_gap(batch))


def _sequence_weights(batch: TokenBatch) -> Tensor:
    total = segment_sum(_log_gap(batch), batch)
    return spread(torch.exp(log_ratio(total, torch.zeros_like(total))[0]), batch)


def _truncated(weights: Tensor, cap: float) -> tuple[Tensor, Tensor]:
    if cap <= 0:
        raise ValueError(f"cap must be above 0, but is {cap}")
    return weights.clamp(max=cap), weights > cap


def _masked(weights: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    if not 0 <= low < high:
        raise ValueError(f"bounds must satisfy 0 <= low < high, but are {low} and {high}")
    outside = (weights < low) | (weights > high)
    return torch.where(outside, torch.zeros_like(weights), weights), outside


CORRECTIONS: dict[str, Correction] = {
    "tis_token": tis_token,
    "tis_sequence": tis_sequence,
    "mis_token": mis_token,
    "mis_sequence": mis_sequence,
}
