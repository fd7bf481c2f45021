"""From scored bundles to a step's metrics. Pure; names as in `rl.tracking.names`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import comb

import numpy as np

from rl.types import Bundle, PolicyVersion, Trajectory


def rollout_metrics(bundles: Sequence[Bundle], version: PolicyVersion) -> dict[str, float]:
    """Rewards, lengths, finish reasons and staleness of a step's trajectories.

    Args:
        bundles: accepted and scored.
        version: the trainer's version, against which staleness is counted.
    """
    trajectories = [t for bundle in bundles for t in bundle.trajectories]
    if not trajectories:
        return {}
    out = reward_metrics(trajectories)
    lengths = np.array([t.response_tokens for t in trajectories], dtype=float)
    out["response/tokens_mean"] = float(lengths.mean())
    out["response/tokens_max"] = float(lengths.max())
    out["response/truncated_share"] = _share(t.finish.truncated for t in trajectories)
    out["response/failed_share"] = _share(not t.finish.scorable for t in trajectories)
    out["tokens/generated"] = float(lengths.sum())
    spreads = [_spread(group.trajectories) for bundle in bundles for group in bundle.groups.values()]
    known = [spread for spread in spreads if spread is not None]
    if known:
        out["groups/zero_variance_share"] = _share(spread == 0 for spread in known)
    stale = [
        (version.number - span.version.number, span.end - span.start)
        for t in trajectories
        for segment in t.segments
        for span in segment.version_spans
    ]
    tokens = sum(count for _, count in stale)
    if tokens:
        out["policy/staleness_mean"] = sum(age * count for age, count in stale) / tokens
        out["policy/staleness_max"] = float(max(age for age, _ in stale))
    for source in sorted({bundle.task.source for bundle in bundles}):
        rewards = [t.reward for b in bundles if b.task.source == source for t in b.trajectories if t.reward is not None]
        if rewards:
            out[f"data/{source}/reward"] = float(np.mean(rewards))
        out[f"data/{source}/tasks"] = float(sum(bundle.task.source == source for bundle in bundles))
    out |= _means_by_name([t.metrics for t in trajectories], "episode/")
    return out


def reward_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Total, outcome and named rewards: means over those that were scored, and the share that was not."""
    out: dict[str, float] = {}
    totals = np.array([t.reward for t in trajectories if t.reward is not None], dtype=float)
    if totals.size:
        out["reward/mean"] = float(totals.mean())
        out["reward/std"] = float(totals.std())
        out["reward/min"], out["reward/max"] = float(totals.min()), float(totals.max())
    outcomes = [t.outcome for t in trajectories if t.outcome is not None]
    if outcomes:
        out["reward/outcome"] = float(np.mean(outcomes))
    for name in sorted({name for t in trajectories for name in t.rewards}):
        values = [t.rewards[name] for t in trajectories if name in t.rewards]
        scored = [value for value in values if value is not None]
        if scored:
            out[f"reward/{name}/mean"] = float(np.mean(scored))
        out[f"reward/{name}/none_share"] = 1.0 - len(scored) / len(values)
    return out


def eval_metrics(by_source: Mapping[str, Sequence[Bundle]]) -> dict[str, float]:
    """Held-out accuracy (the outcome, or the reward where there is none), by source and over all tasks."""
    out: dict[str, float] = {}
    everything: list[float] = []
    for source, bundles in by_source.items():
        out |= {f"eval/{source}/pass_at/{k}": v for k, v in pass_at_k(bundles).items()}
        trajectories = [t for bundle in bundles for t in bundle.trajectories]
        scores = [s for s in map(_correctness, trajectories) if s is not None]
        everything += scores
        if scores:
            out[f"eval/{source}/accuracy"] = float(np.mean(scores))
        lengths = [t.response_tokens for t in trajectories if t.segments]  # an endpoint's have text alone
        if lengths:
            out[f"eval/{source}/tokens_mean"] = float(np.mean(lengths))
        if trajectories:
            out[f"eval/{source}/truncated_share"] = _share(t.finish.truncated for t in trajectories)
        out |= _means_by_name([t.metrics for t in trajectories], f"eval/{source}/episode/")
    if everything:
        out["eval/accuracy"] = float(np.mean(everything))
    all_bundles = [bundle for bundles in by_source.values() for bundle in bundles]
    return out | {f"eval/pass_at/{k}": v for k, v in pass_at_k(all_bundles).items()}


def pass_at_k(bundles: Sequence[Bundle]) -> dict[int, float]:
    """pass@k for k = 1, 2, 4, ... up to the samples of a task: mean over tasks of 1 - C(n - c, k) / C(n, k).

    A sample is right at a correctness of at least 0.5; samples that were not scored are left out, and
    tasks with fewer than ``k`` scored samples are not counted for that ``k``. Empty for one sample a task.
    """
    tasks = []
    for bundle in bundles:
        scores = [s for s in map(_correctness, bundle.trajectories) if s is not None]
        tasks.append((len(scores), sum(score >= 0.5 for score in scores)))
    most = max((n for n, _ in tasks), default=0)
    out = {}
    k = 1
    while most > 1 and k <= most:
        chances = [1 - comb(n - c, k) / comb(n, k) for n, c in tasks if n >= k]
        out[k] = float(np.mean(chances))
        k *= 2
    return out


def _correctness(trajectory: Trajectory) -> float | None:
    return trajectory.reward if trajectory.outcome is None else trajectory.outcome


def _spread(trajectories: Sequence[Trajectory]) -> float | None:
    rewards = [t.reward for t in trajectories if t.reward is not None]
    return float(np.ptp(rewards)) if len(rewards) > 1 else None


def _share(flags: Iterable[bool]) -> float:
    values = [float(flag) for flag in flags]
    return sum(values) / len(values) if values else 0.0


def _means_by_name(rows: Sequence[Mapping[str, float]], prefix: str) -> dict[str, float]:
    names = sorted({name for row in rows for name in row})
    return {prefix + name: float(np.mean([row[name] for row in rows if name in row])) for name in names}
