"""The collector: planner events, groups, drops and failures, without Ray."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from rl.orchestration.collect import collect
from rl.planners.base import PlannerContext
from rl.planners.fixed import FixedPlanner
from rl.types import (
    Accept,
    Bundle,
    Drop,
    Finish,
    Group,
    Plan,
    PolicyVersion,
    Request,
    SamplingParams,
    Segment,
    Task,
    Trajectory,
    bundle_id,
)

SAMPLING = SamplingParams(max_tokens=4)


class Tasks:
    def __init__(self) -> None:
        self.position = 0

    def take(self, n: int) -> list[tuple[Task, int]]:
        names = [f"t{self.position + i}" for i in range(n)]
        self.position += n
        return [(Task(name, ({"role": "user", "content": name},)), 0) for name in names]


def context(tasks: int = 3, samples: int = 2) -> PlannerContext:
    return PlannerContext(1, PolicyVersion(0, 0), Tasks(), tasks, samples, SAMPLING)


def trajectory(request: Request, index: int) -> Trajectory:
    segment = Segment(np.array([1, 2], np.int32), np.array([False, True]), np.zeros(2, np.float32))
    return Trajectory(request.request_id, request.bundle_id, request.kind, index, 0, [segment], (), Finish.STOP)


class Pool:
    """Answers after a delay by task name; remembers cancellations."""

    def __init__(self, delays: dict[str, float] | None = None) -> None:
        self.delays, self.cancelled, self.aborts = delays or {}, [], 0

    async def rollout(self, request: Request) -> list[Trajectory]:
        try:
            await asyncio.sleep(self.delays.get(request.task.task_id, 0))
        except asyncio.CancelledError:
            self.cancelled.append(request.task.task_id)
            raise
        return [trajectory(request, request.first_sample + i) for i in range(request.samples)]

    async def abort(self) -> None:
        self.aborts += 1


class Scorer:
    def __init__(self) -> None:
        self.seen: list[str] = []

    async def score(self, bundle: Bundle) -> None:
        self.seen.append(bundle.task.task_id)
        for t in bundle.trajectories:
            t.reward = float(t.sample_index)


def run(planner: Any, ctx: PlannerContext, pool: Pool, **options: Any) -> Any:
    return asyncio.run(collect(planner, ctx, pool, Scorer(), **options))


def test_bundles_come_in_order_of_submission_whoever_was_faster() -> None:
    done = run(FixedPlanner(), context(), Pool({"t0": 0.05, "t1": 0.02}))
    assert [bundle.task.task_id for bundle in done.bundles] == ["t0", "t1", "t2"]
    assert [[t.reward for t in b.trajectories] for b in done.bundles] == [[0.0, 1.0]] * 3


class Watcher(FixedPlanner):
    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []

    def on_rollout(self, group: Group, ctx: PlannerContext) -> Plan:
        self.order.append(group.task.task_id)
        assert all(t.reward is None for t in group.trajectories), "told after scoring"
        return Plan()


@pytest.mark.parametrize(("ordered", "expected"), [(True, ["t0", "t1", "t2"]), (False, ["t2", "t1", "t0"])])
def test_ordered_mode_tells_the_planner_in_order_of_requests(ordered: bool, expected: list[str]) -> None:
    planner = Watcher()
    run(planner, context(), Pool({"t0": 0.1, "t1": 0.05}), ordered=ordered)
    assert planner.order == expected


class Extender(FixedPlanner):
    """Asks for one more sample of each group once, after its rollout."""

    def on_rollout(self, group: Group, ctx: PlannerContext) -> Plan:
        if len(group.trajectories) > ctx.samples_per_task:
            return Plan()
        more = Request(
            f"more:{group.bundle_id}", group.task, group.kind, 0, group.bundle_id, 1, (SAMPLING,), first_sample=2
        )
        return Plan(requests=(more,))


def test_a_group_that_grows_is_scored_once_and_whole() -> None:
    done = run(Extender(), context(), Pool())
    assert [[t.sample_index for t in b.trajectories] for b in done.bundles] == [[0, 1, 2]] * 3


class Dropper(FixedPlanner):
    """Drops the first task's bundle as soon as another one is scored, and ends the step."""

    def on_scored(self, bundle: Bundle, ctx: PlannerContext) -> Plan:
        drop = (bundle_id("t0", 0), Drop("too_slow"))
        return Plan(close=((bundle.bundle_id, Accept()), drop), step_complete=True)


def test_a_dropped_bundle_is_cancelled_and_counted() -> None:
    pool = Pool({"t0": 60})
    done = run(Dropper(), context(tasks=2), pool)
    assert [b.task.task_id for b in done.bundles] == ["t1"]
    assert done.dropped == {"too_slow": 1}
    assert pool.cancelled == ["t0"]


class Idle(FixedPlanner):
    def start(self, ctx: PlannerContext) -> Plan:
        return Plan()


def test_a_planner_that_waits_for_nothing_is_an_error_not_a_hang() -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        run(Idle(), context(), Pool())
    assert "none is in flight" in str(caught.value.exceptions[0])


class Loser(Pool):
    async def rollout(self, request: Request) -> list[Trajectory]:
        return (await super().rollout(request))[:-1]


def test_lost_trajectories_are_an_error() -> None:
    with pytest.raises(RuntimeError, match="1 of 2"):
        run(FixedPlanner(), context(), Loser())


class Broken(Pool):
    async def rollout(self, request: Request) -> list[Trajectory]:
        if request.task.task_id == "t1":
            raise ValueError("engine fault")
        return await super().rollout(request)


def test_a_fault_cancels_the_rest_and_is_raised() -> None:
    pool = Broken({"t0": 60, "t2": 60})
    with pytest.raises(BaseExceptionGroup) as caught:
        run(FixedPlanner(), context(), pool)
    assert "engine fault" in str(caught.value.exceptions[0])
    assert sorted(pool.cancelled) == ["t0", "t2"]
