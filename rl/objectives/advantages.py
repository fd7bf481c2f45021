"""Advantage estimators: from a group's rewards to one number a trajectory. NumPy, pure.

An estimator takes ``rewards [n]`` of the scored trajectories of one group and returns ``[n]``.
Estimators marked ``batch`` see all groups of the step at once, as a list of arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rewards = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimator:
    """A named estimator: ``fn(groups, **options)`` maps a list of reward arrays to a list of advantages."""

    fn: Callable[..., list[Rewards]]
    about: str


def group_norm(groups: Sequence[Rewards], *, ddof: int = 1, eps: float = 1e-6) -> list[Rewards]:
    """(r - mean) / (std + eps) in each group: GRPO, arXiv 2402.03300, eq. for outcome supervision.

    Equal rewards give zero. A group of one has no baseline and gives zero.
    """
    return [_centred(r) / (_std(r, ddof) + eps) for r in groups]


def group_mean(groups: Sequence[Rewards]) -> list[Rewards]:
    """r - mean in each group, without the std: Dr. GRPO, arXiv 2503.20783."""
    return [_centred(r) for r in groups]


def leave_one_out(groups: Sequence[Rewards]) -> list[Rewards]:
    """r minus the mean of the others: RLOO, arXiv 2402.14740. Equals (r - mean) n / (n - 1)."""
    return [_centred(r) * (len(r) / (len(r) - 1)) if len(r) > 1 else np.zeros_like(r) for r in groups]


def batch_std(groups: Sequence[Rewards], *, ddof: int = 1, eps: float = 1e-6) -> list[Rewards]:
    """(r - group mean) over the std of all rewards of the batch."""
    spread = _std(np.concatenate(list(groups)), ddof) if groups else 0.0
    return [_centred(r) / (spread + eps) for r in groups]


def reinforce_pp(groups: Sequence[Rewards], *, eps: float = 1e-8) -> list[Rewards]:
    """Rewards normalised over the global batch, no group baseline: REINFORCE++, arXiv 2501.03262."""
    return _normalised([np.asarray(r, dtype=np.float64) for r in groups], eps)


def reinforce_pp_baseline(groups: Sequence[Rewards], *, eps: float = 1e-8) -> list[Rewards]:
    """Group mean as the baseline, then normalised over the global batch: REINFORCE++-baseline."""
    return _normalised([_centred(r) for r in groups], eps)


def raw(groups: Sequence[Rewards]) -> list[Rewards]:
    """The reward itself."""
    return [np.asarray(r, dtype=np.float64) for r in groups]


def _centred(rewards: Rewards) -> Rewards:
    if len(rewards) < 2 or np.ptp(rewards) == 0:  # exact zeros: a mean of equal floats may round
        return np.zeros(len(rewards))
    return rewards - rewards.mean()


def _std(rewards: Rewards, ddof: int) -> float:
    return float(rewards.std(ddof=ddof)) if len(rewards) > ddof else 0.0


def _normalised(values: list[Rewards], eps: float) -> list[Rewards]:
    if not values:
        return []
    everything = np.concatenate(values)
    if np.ptp(everything) == 0:
        return [np.zeros_like(v) for v in values]
    return [(v - everything.mean()) / (everything.std() + eps) for v in values]


ADVANTAGES: dict[str, Any] = {
    "group_norm": Estimator(group_norm, "group mean and std (GRPO)"),
    "group_mean": Estimator(group_mean, "group mean only (Dr. GRPO)"),
    "leave_one_out": Estimator(leave_one_out, "mean of the other samples (RLOO)"),
    "batch_std": Estimator(batch_std, "group mean, std over the batch"),
    "reinforce_pp": Estimator(reinforce_pp, "normalised over the global batch (REINFORCE++)"),
    "reinforce_pp_baseline": Estimator(reinforce_pp_baseline, "group mean, normalised over the global batch"),
    "raw": Estimator(raw, "the reward itself"),
}
