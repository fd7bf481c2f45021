"""Scores bundles with the named rewards of a config.

Plain functions run in processes of their own (`rewards.pool`): one that hangs is killed, its trajectory
gets the ``on_sample_error`` value and is counted. Async functions run on this loop. A function that
raises ends the run.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rewards.contract import RewardError, RewardUnavailable, arguments_for, checked, name_of
from rewards.loading import load_reward
from rewards.pool import DeadlinePassed, ScoringPool, WorkerLost
from rl.config.errors import ConfigError
from rl.config.schema import RewardConfig, RewardFunctionConfig
from rl.types import Bundle, Finish, Task, Trajectory

log = logging.getLogger(__name__)

FROM_ENVIRONMENT = "environment"
"""As a reward's `fn`: the value is what the environment gave under that name."""


@dataclass(frozen=True, slots=True)
class _Reward:
    name: str
    fn: Any
    config: RewardFunctionConfig


class Scorer:
    """Fills ``rewards``, ``reward`` and ``outcome`` of trajectories.

    Rewards that the environment gave are kept and count with weight 1, or with that of the entry of
    their name whose function is `environment`; what such an entry names and the environment did not
    give is 0.
    """

    def __init__(self, reward: RewardConfig, *, base_dir: Path) -> None:
        self._config, self._base_dir = reward, base_dir
        own = {name: spec for name, spec in reward.functions.items() if spec.fn != FROM_ENVIRONMENT}
        self._rewards = [_Reward(name, load_reward(spec.fn, base_dir), spec) for name, spec in own.items()]
        self._given = [name for name in reward.functions if name not in own]
        self._pool = ScoringPool(max(1, reward.workers), memory_mb=reward.memory_mb or 0)
        self._threads = ThreadPoolExecutor(max_workers=max(2, reward.workers), thread_name_prefix="reward")
        self.counters: Counter[str] = Counter()
        self.step = 1
        """Of the run: moves weights that have a schedule."""

    async def score(self, bundle: Bundle) -> None:
        """Scores every trajectory that may be scored; the others keep ``reward`` None."""
        members = [t for t in bundle.trajectories if t.finish.scorable]
        wanted = [r for r in self._rewards if bundle.task.rewards is None or r.name in bundle.task.rewards]
        if members:
            for reward, scores in zip(
                wanted, await asyncio.gather(*(self._call(r, bundle.task, members) for r in wanted)), strict=True
            ):
                for trajectory, score in zip(members, scores, strict=True):
                    trajectory.rewards[reward.name] = score
        for trajectory in members:
            for name in self._given:
                if name not in trajectory.rewards and (bundle.task.rewards is None or name in bundle.task.rewards):
                    trajectory.rewards[name] = 0.0
                    self.counters[f"{name}/not_given"] += 1
            self._total(trajectory)

    async def check_gold(self, tasks: Sequence[Task], column: str) -> None:
        """Scores gold answers as if the policy had written them.

        Raises:
            ConfigError: the column is missing, or a gold answer does not get its reward's best score.
        """
        for task in tasks:
            if column not in task.columns:
                raise ConfigError(
                    f"reward.check_gold: no column {column!r}; task {task.task_id} has {sorted(task.columns)}"
                )
            said = ({"role": "assistant", "content": str(task.columns[column])},)
            t = Trajectory("gold", "gold", "solution", 0, 0, [], task.messages + said, Finish.STOP, len(task.messages))
            for reward in self._rewards:
                score = (await self._call(reward, task, [t]))[0]
                if score is not None and score <= 0:
                    raise ConfigError(
                        f"reward.check_gold: {reward.name} gives the gold answer {task.columns[column]!r} {score}; "
                        "the column or the format does not fit the reward"
                    )

    def take_metrics(self) -> dict[str, float]:
        """Failures since the last call, by reward, and what a reward counts itself in ``counters``."""
        out = {f"reward/{name}": float(count) for name, count in self.counters.items()}
        functions = self._config.functions.items()
        out |= {f"reward/{name}/weight": self._weight(spec) for name, spec in functions if spec.weight_steps}
        self.counters.clear()
        for reward in self._rewards:
            own = getattr(reward.fn, "counters", None)
            if isinstance(own, Counter):
                out |= {f"reward/{reward.name}/{what}": float(count) for what, count in own.items()}
                own.clear()
        return out

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._pool.close()
        for reward in self._rewards:
            if hasattr(reward.fn, "close"):
                reward.fn.close()

    async def _call(self, reward: _Reward, task: Task, members: Sequence[Trajectory]) -> list[float | None]:
        """Scores of one reward. A call that passes its deadline is tried again one trajectory at a time."""
        infra, _, tries = reward.config.on_infra_error.partition(":")
        last: Exception | None = None
        for attempt in range(1 + (int(tries) if infra == "retry" else 0)):
            if attempt:
                await asyncio.sleep(min(10.0, 0.1 * 4 ** (attempt - 1)))
            try:
                return await self._once(reward, task, members)
            except (TimeoutError, DeadlinePassed):
                if len(members) > 1:
                    return [(await self._call(reward, task, [member]))[0] for member in members]
                self.counters[f"{reward.name}/timeout"] += 1
                return [_policy_value(reward)]
            except (WorkerLost, RewardUnavailable) as error:
                last = error
                what = "worker_lost" if isinstance(error, WorkerLost) else "unavailable"
                self.counters[f"{reward.name}/{what}"] += 1
                log.warning("reward %s: %s (attempt %d)", reward.name, error, attempt + 1)
        if infra == "stop_run":
            raise RewardError(f"reward {reward.name}: {last}")
        return [float(tries) if infra == "value" else None] * len(members)

    async def _once(self, reward: _Reward, task: Task, members: Sequence[Trajectory]) -> list[float | None]:
        config, seconds = reward.config, reward.config.timeout_s * len(members)
        if not _is_async(reward.fn):
            work = partial(self._pool.score, config.fn, self._base_dir, config.options, task, members, seconds)
            try:
                return await asyncio.get_running_loop().run_in_executor(self._threads, work)
            except RewardError as error:
                raise RewardError(f"reward {reward.name}: {error}") from error
        arguments = arguments_for(reward.fn, [task] * len(members), members, config.options)
        try:
            scores = await asyncio.wait_for(reward.fn(**arguments), seconds)
        except (TimeoutError, RewardError, RewardUnavailable):
            raise
        except Exception as error:
            raise RewardError(
                f"reward {reward.name} ({name_of(reward.fn)}) raised {type(error).__name__}: {error}"
            ) from error
        return checked(reward.fn, scores, len(members))

    def _weight(self, config: RewardFunctionConfig) -> float:
        if config.weight_end is None:
            return config.weight
        done = min(1.0, (self.step - 1) / config.weight_steps)
        return config.weight + (config.weight_end - config.weight) * done

    def _total(self, trajectory: Trajectory) -> None:
        weights = {name: self._weight(spec) for name, spec in self._config.functions.items()}
        scored = {name: value for name, value in trajectory.rewards.items() if value is not None}
        trajectory.reward = sum(weights.get(n, 1.0) * v for n, v in scored.items()) if scored else None
        if self._config.outcome is not None:
            value = trajectory.rewards.get(self._config.outcome)
            limit = self._config.outcome_threshold
            trajectory.outcome = value if value is None or limit is None else float(value >= limit)


def _policy_value(reward: _Reward) -> float | None:
    action, _, value = reward.config.on_sample_error.partition(":")
    if action == "value":
        return float(value)
    if action == "drop":
        return None
    raise RewardError(f"reward {reward.name} passed its deadline of {reward.config.timeout_s} s a trajectory")


def _is_async(fn: Any) -> bool:
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004
