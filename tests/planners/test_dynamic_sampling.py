"""Dynamic sampling: refills one for one, reads outcomes, always ends."""

from __future__ import annotations

import asyncio
import random

import pytest

from rl.config.checks import require_complete
from rl.config.errors import ConfigError
from rl.config.schema import Config, RewardFunctionConfig, SourceConfig, StopConfig
from rl.orchestration.collect import collect
from rl.planners import PLANNERS
from rl.planners.base import PlannerContext
from rl.planners.dynamic_sampling import DynamicSamplingPlanner, NothingPassed
from rl.types import Bundle, PolicyVersion, Request, SamplingParams, Task, Trajectory
from tests.objectives.batches import trajectory


class Tasks:
    def __init__(self) -> None:
        self.taken = 0

    def take(self, n: int) -> list[tuple[Task, int]]:
        names = [str(self.taken + i) for i in range(n)]
        self.taken += n
        return [(Task(name, ()), 0) for name in names]


class Pool:
    async def rollout(self, request: Request) -> list[Trajectory]:
        await asyncio.sleep(random.random() / 200)
        return [trajectory(None, i, task=request.task.task_id) for i in range(request.samples)]

    async def abort(self) -> None:
        raise AssertionError("nothing is left over")


class Scorer:
    """Task ``n`` has both answers where ``mixed(n)``; the shaped rewards always differ."""

    def __init__(self, mixed, right: float = 0.0) -> None:
        self.mixed, self.right = mixed, right

    async def score(self, bundle: Bundle) -> None:
        for t in bundle.trajectories:
            mixed = self.mixed(int(bundle.task.task_id))
            t.outcome = float(t.sample_index == 0) if mixed else self.right
            t.reward = t.outcome - 0.1 * t.sample_index


def run(mixed, tasks=4, right=0.0, **options):
    stream = Tasks()
    ctx = PlannerContext(1, PolicyVersion(0, 0), stream, tasks, 3, SamplingParams(max_tokens=4))
    done = asyncio.run(collect(DynamicSamplingPlanner(**options), ctx, Pool(), Scorer(mixed, right)))
    return sorted(int(b.task.task_id) for b in done.bundles), dict(done.dropped), stream.taken


def test_the_batch_is_filled_with_groups_that_differ():
    for _ in range(3):  # whoever is faster
        assert run(lambda n: n % 3 == 1, max_factor=4) == ([1, 4, 7, 10], {"all_wrong": 7}, 11)


def test_it_reads_the_outcome_not_the_shaped_reward():  # LOSS-34
    kept, dropped, _ = run(lambda n: n >= 4)
    assert kept == [4, 5, 6, 7] and dropped == {"all_wrong": 4}


def test_always_right_for_most_prompts_fills_within_the_bound():  # ORCH-10
    kept, dropped, taken = run(lambda n: n % 10 == 0, tasks=3, right=1.0, max_factor=10)
    assert kept == [0, 10, 20] and dropped == {"all_right": 18} and taken == 21


def test_the_bound_ends_the_step_with_what_there_is():
    kept, dropped, taken = run(lambda n: n == 5, max_factor=2)
    assert kept == [5] and dropped == {"all_wrong": 7} and taken == 8


def test_nothing_passes():  # ORCH-10
    with pytest.raises(ExceptionGroup) as caught:
        run(lambda n: False, max_factor=2.5)
    (error,) = caught.value.exceptions
    assert isinstance(error, NothingPassed)
    assert "none of 10 tasks" in str(error) and "samples_per_task" in str(error)
    assert run(lambda n: False, max_factor=2.5, on_empty="skip") == ([], {"all_wrong": 10}, 10)


def test_unscored_groups_are_named():
    kept, dropped, _ = run(lambda n: True, right=None)
    assert len(kept) == 4 and dropped == {}
    with pytest.raises(ExceptionGroup):
        run(lambda n: False, right=None)


def test_bad_options_and_a_missing_outcome_are_refused():
    with pytest.raises(ConfigError, match="max_factor"):
        DynamicSamplingPlanner(max_factor=0.5)
    with pytest.raises(ConfigError, match="on_empty"):
        DynamicSamplingPlanner(on_empty="loop")
    assert PLANNERS["dynamic_sampling"] is DynamicSamplingPlanner
    config = Config(planner="dynamic_sampling", stop=StopConfig(steps=1))
    config.model.path, config.data.sources = "m", [SourceConfig(path="x.jsonl")]
    config.reward.functions = {"correct": RewardFunctionConfig(fn="exact_match")}
    with pytest.raises(ConfigError, match=r"reward\.outcome.*correct"):
        require_complete(config)
    config.reward.outcome = "correct"
    require_complete(config)
