"""One step's rollouts: planner events in, accepted bundles out.

Producers (rollouts and scorings) put events on one bounded queue and the planner answers each with
more requests, closed bundles, or the end of the step.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from rl.planners.base import Planner, PlannerContext
from rl.types import Accept, Bundle, Group, Plan, Request, TrainDirective, Trajectory

QUEUE = 256
"""Finished rollouts and scorings that may wait for the planner."""


class Sampler(Protocol):
    """What the collector needs of the pool."""

    async def rollout(self, request: Request) -> list[Trajectory]: ...

    async def abort(self) -> None: ...


class BundleScorer(Protocol):
    """What the collector needs of the scorer."""

    async def score(self, bundle: Bundle) -> None: ...


@dataclass(slots=True)
class Collected:
    """A finished step, before training."""

    bundles: list[Bundle]
    """Accepted, in order of submission: the batch does not depend on who was faster."""
    directive: TrainDirective
    dropped: Counter[str]
    """Bundles that the planner threw away, by reason."""
    generate_seconds: float
    score_seconds: float
    """Time after the last rollout until the last score."""


@dataclass(slots=True)
class _Step:
    """What is known of the step in progress."""

    bundles: dict[str, Bundle] = field(default_factory=dict)
    accepted: set[str] = field(default_factory=set)
    dropped: Counter[str] = field(default_factory=Counter)
    waiting: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Requests in flight by (bundle, kind)."""
    tasks: dict[str, list[asyncio.Task[None]]] = field(default_factory=dict)
    scoring: set[str] = field(default_factory=set)
    last_rollout: float = 0.0


async def collect(
    planner: Planner, ctx: PlannerContext, sampler: Sampler, scorer: BundleScorer, *, ordered: bool = False
) -> Collected:
    """Runs a step until the planner says that it is complete.

    Args:
        ordered: tell the planner of rollouts in the order of their requests, whoever finished first.

    Raises:
        RuntimeError: the planner waits although nothing is in flight.
    """
    step = _Step()
    queue: asyncio.Queue[Group | Bundle] = asyncio.Queue(maxsize=QUEUE)
    started = time.monotonic()
    previous: asyncio.Task[None] | None = None

    async def roll(request: Request, after: asyncio.Task[None] | None) -> None:
        trajectories = await sampler.rollout(request)
        if ordered and after is not None:
            await asyncio.wait([after])
        step.last_rollout = time.monotonic()
        group = step.bundles[request.bundle_id].groups[request.kind]
        group.trajectories.extend(trajectories)
        group.trajectories.sort(key=lambda t: t.sample_index)
        step.waiting[request.bundle_id, request.kind] -= 1
        if not step.waiting[request.bundle_id, request.kind]:
            await queue.put(group)

    async def score(bundle: Bundle) -> None:
        await scorer.score(bundle)
        step.scoring.discard(bundle.bundle_id)
        await queue.put(bundle)

    def apply(plan: Plan, workers: asyncio.TaskGroup) -> None:
        nonlocal previous
        for request in plan.requests:
            _register(step, request)
            previous = workers.create_task(roll(request, previous))
            step.tasks[request.bundle_id].append(previous)
        for name, verdict in plan.close:
            if isinstance(verdict, Accept):
                step.accepted.add(name)
            else:
                step.dropped[verdict.reason] += 1
                for task in step.tasks.pop(name, []):
                    task.cancel()
                del step.bundles[name]

    async with asyncio.TaskGroup() as workers:
        plan = planner.start(ctx)
        apply(plan, workers)
        while not plan.step_complete:
            running = any(not t.done() for tasks in step.tasks.values() for t in tasks)
            if queue.empty() and not running and not step.scoring:
                raise RuntimeError("the planner waits for more rollouts, but none is in flight: a fault of the planner")
            event = await queue.get()
            if event.bundle_id not in step.bundles:  # dropped meanwhile
                continue
            if isinstance(event, Bundle):
                plan = planner.on_scored(event, ctx)
                apply(plan, workers)
                continue
            plan = planner.on_rollout(event, ctx)
            apply(plan, workers)
            bundle = step.bundles.get(event.bundle_id)
            if bundle is not None and all(not step.waiting[bundle.bundle_id, kind] for kind in bundle.groups):
                step.scoring.add(bundle.bundle_id)
                step.tasks[bundle.bundle_id].append(workers.create_task(score(bundle)))
        leftovers = [t for tasks in step.tasks.values() for t in tasks if not t.done()]
        if leftovers:
            for task in leftovers:
                task.cancel()
            await sampler.abort()
    ended = time.monotonic()
    last = step.last_rollout or ended
    bundles = [bundle for name, bundle in step.bundles.items() if name in step.accepted]
    _check_complete(bundles)
    return Collected(bundles, plan.train, step.dropped, last - started, ended - last)


def _register(step: _Step, request: Request) -> None:
    bundle = step.bundles.get(request.bundle_id)
    if bundle is None:
        bundle = step.bundles[request.bundle_id] = Bundle(request.bundle_id, request.task, request.draw)
        step.tasks[request.bundle_id] = []
    group = bundle.groups.get(request.kind)
    if group is None:
        group = bundle.groups[request.kind] = Group(request.bundle_id, request.kind, request.task, requested=0)
    group.requested += request.samples
    step.waiting[request.bundle_id, request.kind] += 1


def _check_complete(bundles: list[Bundle]) -> None:
    for bundle in bundles:
        for group in bundle.groups.values():
            if not group.complete:
                raise RuntimeError(
                    f"group {group.bundle_id}/{group.kind} has {len(group.trajectories)} of {group.requested} "
                    "trajectories: some were lost without being counted"
                )
