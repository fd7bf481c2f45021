"""Advantage estimators: from rewards to one number a trajectory. NumPy, pure.

An estimator is ``fn(groups, **options)``. ``groups`` holds one float array ``[n]`` for each group of
the step: the rewards of its scored trajectories. It returns arrays of the same shapes. An estimator
whose attribute ``by_name`` is true gets ``{reward name: [n]}`` for each group instead, before
weighting, NaN where a reward did not score a trajectory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import comb

import numpy as np
from numpy.typing import NDArray

Rewards = NDArray[np.float64]
Estimator = Callable[..., list[Rewards]]


def group_norm(groups: Sequence[Rewards], *, ddof: int = 1, eps: float = 1e-6) -> list[Rewards]:
    """(r - mean) / (std + eps) in each group: GRPO, arXiv 2402.03300, eq. for outcome supervision.

    Equal rewards give zero. A group of one has no baseline and gives zero.
    """
    return [_centred(r) / (_std(r, ddof) + eps) for r in groups]


def group_mean(groups: Sequence[Rewards]) -> list[Rewards]:
    """r - mean in each group, without the std: Dr. GRPO, arXiv 2503.20783."""
    return [_centred(r) for r in groups]


def leave_one_out(groups: Sequence[Rewards]) -> list[Rewards]:
    """r minus the mean of the others: RLOO, arXiv 2402.14740. Equals (r - mean) n / (n - 1).

    A group of one has no others and gives zero.
    """
    return [_centred(r) * (len(r) / (len(r) - 1)) if len(r) > 1 else np.zeros_like(r) for r in groups]


def batch_std(groups: Sequence[Rewards], *, ddof: int = 1, eps: float = 1e-6) -> list[Rewards]:
    """(r - group mean) over the std of all rewards of the batch: Lite PPO, arXiv 2508.08221."""
    spread = _std(np.concatenate(list(groups)), ddof) if groups else 0.0
    return [_centred(r) / (spread + eps) for r in groups]


def raw(groups: Sequence[Rewards]) -> list[Rewards]:
    """The reward itself: for values or returns that bring a baseline of their own."""
    return [np.asarray(r, dtype=np.float64) for r in groups]


def none(groups: Sequence[Rewards]) -> list[Rewards]:
    """Zero: the signal is made on the tokens, from a teacher."""
    return [np.zeros(len(r)) for r in groups]


def gdpo(
    groups: Sequence[Mapping[str, Rewards]],
    *,
    weights: Mapping[str, float] | None = None,
    ddof: int = 1,
    eps: float = 1e-6,
    batch_norm: bool = True,
) -> list[Rewards]:
    """Each reward normalised in its group, then summed, then normalised over the batch: GDPO, arXiv 2601.05242.

    A trajectory that a reward did not score gets 0 from it and stays out of its mean and std.

    Args:
        weights: of the normalised rewards, by name; 1 where not given.
        batch_norm: divide by the std of the sums over the batch (their mean is taken away too).
    """
    weights = weights or {}
    out = []
    for group in groups:
        total = np.zeros(len(next(iter(group.values()))))
        for name, values in group.items():
            scored = np.isfinite(values)
            total[scored] += weights.get(name, 1.0) * group_norm([values[scored]], ddof=ddof, eps=eps)[0]
        out.append(total)
    everything = np.concatenate(out) if out else np.zeros(0)
    if not batch_norm or everything.size < 2 or np.ptp(everything) == 0:
        return out
    return [(total - everything.mean()) / (everything.std() + eps) for total in out]


gdpo.by_name = True  # type: ignore[attr-defined]


def pass_at_k(groups: Sequence[Rewards], *, k: int = 4, threshold: float = 0.5) -> list[Rewards]:
    """Analytic advantages of pass@k as the reward: Pass@k Training, arXiv 2508.10751, section 2.4.

    A sample is right when its reward is at least ``threshold``. Groups smaller than ``k``, and groups
    in which every set of ``k`` passes or none does, give zero.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, but is {k}")
    return [_pass_at_k(np.asarray(r) >= threshold, k) for r in groups]


def accepted(groups: Sequence[Rewards], *, threshold: float = 0.5, best: int | None = None) -> list[Rewards]:
    """1 for trajectories to imitate, 0 for the others: rejection sampling, expert iteration (arXiv 2304.06767).

    Args:
        threshold: least reward.
        best: at most so many of a group, those of highest reward, earlier samples first.
    """
    out = []
    for rewards in groups:
        keep = np.asarray(rewards) >= threshold
        if best is not None:
            order = np.argsort(-np.asarray(rewards), kind="stable")
            keep &= np.isin(np.arange(len(rewards)), order[:best])
        out.append(keep.astype(np.float64))
    return out


def _pass_at_k(right: NDArray[np.bool_], k: int) -> Rewards:
    n, wrong = len(right), int((~right).sum())
    if n < k:
        return np.zeros(n)
    mean = 1 - comb(wrong, k) / comb(n, k)
    std = (mean * (1 - mean)) ** 0.5
    if std == 0:
        return np.zeros(n)
    of_wrong = (1 - mean - comb(wrong - 1, k - 1) / comb(n - 1, k - 1)) / std if wrong else 0.0
    return np.where(right, (1 - mean) / std, of_wrong)


def _centred(rewards: Rewards) -> Rewards:
    if len(rewards) < 2 or np.ptp(rewards) == 0:  # exact zeros: a mean of equal floats may round
        return np.zeros(len(rewards))
    return np.asarray(rewards - rewards.mean())


def _std(rewards: Rewards, ddof: int) -> float:
    return float(rewards.std(ddof=ddof)) if len(rewards) > ddof else 0.0


ADVANTAGES: dict[str, Estimator] = {
    "group_norm": group_norm,
    "group_mean": group_mean,
    "leave_one_out": leave_one_out,
    "batch_std": batch_std,
    "gdpo": gdpo,
    "pass_at_k": pass_at_k,
    "accepted": accepted,
    "raw": raw,
    "none": none,
}
