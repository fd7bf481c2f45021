"""Text environments with Gymnasium's `reset`, `step` and `close`.

Observations and actions are text. Calls run in a thread of the episode's own, so that a slow
environment blocks no other; one that hangs is abandoned at the episode's deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from envs.base import Action, Limits, Observation, StepResult
from envs.parsing import visible_text
from envs.tools import in_thread
from rl.config.plugins import load_object
from rl.types import Task


class GymnasiumText:
    """One episode.

    Args:
        make: the environment's factory, or its name: a Gymnasium id or `package.module:Class`.
        options: keyword arguments of the factory.
        task_options: columns of the task that `reset` gets as its `options`.
        extract: turns the policy's text into the environment's action; its visible text when not given.
    """

    def __init__(
        self,
        make: str | Callable[..., Any],
        *,
        options: dict[str, Any] | None = None,
        task_options: list[str] | None = None,
        extract: Callable[[str], Any] | None = None,
    ) -> None:
        self._make = make
        self._options = options or {}
        self._task_options = task_options or []
        self._extract = extract or (lambda text: visible_text(text).strip())
        self._env: Any = None

    async def reset(self, task: Task, *, seed: int, limits: Limits) -> Observation:
        self._env = await in_thread(self._build)
        options = {name: task.columns[name] for name in self._task_options}
        text, info = await in_thread(lambda: self._env.reset(seed=seed % 2**31, options=options or None))
        messages = task.messages if not text else (*task.messages, {"role": "user", "content": str(text)})
        return Observation(messages, info=_numbers(info))

    async def step(self, action: Action, *, limits: Limits) -> StepResult:
        done = await in_thread(lambda: self._env.step(self._extract(action.text)))
        text, reward, terminated, truncated, info = done
        messages = () if terminated or truncated else ({"role": "user", "content": str(text)},)
        return StepResult(messages, {"environment": float(reward)}, bool(terminated), bool(truncated), _numbers(info))

    async def close(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            await in_thread(env.close)

    def _build(self) -> Any:
        if not isinstance(self._make, str):
            return self._make(**self._options)
        if ":" in self._make:
            return load_object(self._make, {})(**self._options)
        import gymnasium

        return gymnasium.make(self._make, **self._options)


def _numbers(info: Any) -> dict[str, float]:
    """What can be summed as a metric."""
    return {str(k): float(v) for k, v in dict(info or {}).items() if isinstance(v, (bool, int, float))}
