"""From scored bundles to each rank's batch: verdicts, updates, counts, sharing, packing. numpy only."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rl.config.schema import Config
from rl.objectives.base import Objective, TrajectoryWeight
from rl.packing import pack, share
from rl.training.batch import Counts, StepBatch, TrainRow, UpdatePlan
from rl.types import Bundle, Trajectory


@dataclass(frozen=True, slots=True)
class _Member:
    """A trajectory that is trained."""

    trajectory: Trajectory
    verdict: TrajectoryWeight
    group: int
    kind: int


def assemble(
    step: int,
    bundles: Sequence[Bundle],
    objective: Objective,
    config: Config,
    *,
    ranks: int,
    total_updates: int | None,
    restart_schedule: bool = False,
    updates: int | None = None,
    epochs: int | None = None,
) -> tuple[list[StepBatch], dict[str, float]]:
    """The batch of every rank, and metrics of what went into it.

    The result does not depend on the order of bundles and trajectories: they are sorted first.
    Trajectories are split into updates of near-equal numbers, group after group. All segments of a
    trajectory stay on one rank and in one update. Trajectories that cannot contribute a gradient are
    left out of the rows, not of the counts.

    Args:
        updates, epochs: override ``updates_per_step`` and ``epochs_per_step``.

    Returns:
        One batch a rank, each with equally many micro-batches in each update (spare ones are empty).

    Raises:
        ValueError: a group lacks trajectories, a row does not fit a micro-batch, or the objective gave a
            number that is not finite.
    """
    bundles = sorted(bundles, key=lambda bundle: bundle.bundle_id)
    members, kinds, dropped = _members(bundles, objective)
    groups = sum(len(bundle.groups) for bundle in bundles)
    parts = min(updates or config.updates_per_step, max(1, len(members)))
    batches = [StepBatch(step, [], [], kinds, groups, total_updates, restart_schedule) for _ in range(ranks)]
    group_sizes = Counter(member.group for member in members)
    for part in range(parts):
        chunk = members[part * len(members) // parts : (part + 1) * len(members) // parts]
        counts = Counts(
            tokens=sum(m.trajectory.response_tokens for m in chunk),
            sequences=len(chunk),
            groups=len({m.group for m in chunk}),
        )
        # The group's share of this update, where an update holds a part of it.
        inside: Counter[int] = Counter()
        for m in chunk:
            inside[m.group] += m.trajectory.response_tokens
        used = [m for m in chunk if not objective.may_skip(m.verdict)]
        loads = [sum(len(s.token_ids) for s in m.trajectory.segments) for m in used]
        plans = []
        for batch, mine in zip(batches, share(loads, ranks), strict=True):
            first = len(batch.rows)
            for index in mine:
                batch.rows.extend(_rows(used[index], inside, group_sizes))
            lengths = [len(row.segment.token_ids) for row in batch.rows[first:]]
            packed = pack(lengths, config.trainer.max_tokens_per_microbatch)
            plans.append(UpdatePlan([[first + i for i in bin_] for bin_ in packed], counts))
        most = max(len(plan.microbatches) for plan in plans)
        for batch, plan in zip(batches, plans, strict=True):
            plan.microbatches.extend([] for _ in range(most - len(plan.microbatches)))
            batch.updates.append(plan)
    repeats = epochs or config.epochs_per_step
    for batch in batches:
        batch.updates = batch.updates * repeats
    return batches, _stats(members, batches, dropped, repeats)


def sample_id(trajectory: Trajectory) -> int:
    """Identity of a trajectory within the run, in ``[0, 2**63)``: seeds stochastic parts of objectives."""
    text = "\x1f".join((trajectory.bundle_id, trajectory.kind, str(trajectory.sample_index)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def _members(bundles: Sequence[Bundle], objective: Objective) -> tuple[list[_Member], tuple[str, ...], Counter[str]]:
    verdicts = objective.weights(bundles)
    kinds: dict[str, int] = {}
    members: list[_Member] = []
    dropped: Counter[str] = Counter()
    group_index = 0
    for bundle in bundles:
        for group in sorted(bundle.groups.values(), key=lambda group: group.kind):
            if len(group.trajectories) + group.dropped != group.requested:
                raise ValueError(
                    f"group {group.bundle_id}/{group.kind} has {len(group.trajectories)} trajectories and "
                    f"{group.dropped} drops, but {group.requested} were requested"
                )
            kind = kinds.setdefault(group.kind, len(kinds))
            for t in sorted(group.trajectories, key=lambda t: t.sample_index):
                verdict = verdicts[t.bundle_id, t.kind, t.sample_index]
                if verdict.drop is not None:
                    dropped[verdict.drop] += 1
                elif not np.isfinite(verdict.advantage) or not np.isfinite(verdict.weight):
                    raise ValueError(f"the objective gave {verdict} to {t.bundle_id} sample {t.sample_index}")
                else:
                    members.append(_Member(t, verdict, group_index, kind))
            group_index += 1
    return members, tuple(kinds) or ("solution",), dropped


def _rows(member: _Member, group_tokens: Counter[int], group_sizes: Counter[int]) -> list[TrainRow]:
    t = member.trajectory
    return [
        TrainRow(
            segment=segment,
            advantage=member.verdict.advantage,
            weight=member.verdict.weight,
            sample_id=sample_id(t),
            kind_id=member.kind,
            group_id=member.group,
            trajectory_tokens=t.response_tokens,
            group_tokens=group_tokens[member.group],
            group_sequences=group_sizes[member.group],
            features=member.verdict.features,
        )
        for segment in t.segments
        if segment.trained_tokens
    ]


def _stats(
    members: Sequence[_Member], batches: Sequence[StepBatch], dropped: Counter[str], repeats: int
) -> dict[str, float]:
    rows = [row for batch in batches for row in batch.rows]
    trained = sum(row.segment.trained_tokens for row in rows)
    processed = sum(len(row.segment.token_ids) for row in rows)
    out = {
        "tokens/trained": float(trained * repeats),
        "tokens/processed": float(processed * repeats),
        "train/trajectories": float(len({row.sample_id for row in rows})),
        "train/skipped_share": 1.0 - len({row.sample_id for row in rows}) / len(members) if members else 0.0,
    }
    advantages = np.array([m.verdict.advantage for m in members])
    if advantages.size:
        out["advantage/mean"] = float(advantages.mean())
        out["advantage/std"] = float(advantages.std())
        out["advantage/abs_max"] = float(np.abs(advantages).max())
    return out | {f"train/dropped/{reason}": float(count) for reason, count in dropped.items()}
