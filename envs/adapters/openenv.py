"""Environments served by OpenEnv: one client, and so one server session, an episode.

A client's `reset` and `step` return an object with `observation`, `reward` and `done`; both its
synchronous and its asynchronous kind work.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

from envs.base import Action, Limits, Observation, StepResult
from envs.parsing import visible_text
from envs.tools import in_thread
from rl.config.plugins import load_object
from rl.types import Task


class OpenEnv:
    """One episode.

    Args:
        client: makes a connected client, or its name; for example `my_env.client:MyEnv`.
        action: makes the client's action from text, or its name.
        options: keyword arguments of the client, such as `{base_url: "http://localhost:8000"}`.
        field: attribute of the observation that is shown to the policy; all of it when not given.
    """

    def __init__(
        self,
        client: str | Callable[..., Any],
        action: str | Callable[[str], Any],
        *,
        options: dict[str, Any] | None = None,
        field: str | None = None,
    ) -> None:
        self._factory = load_object(client, {}) if isinstance(client, str) else client
        self._action = load_object(action, {}) if isinstance(action, str) else action
        self._options = options or {}
        self._field = field
        self._client: Any = None

    async def reset(self, task: Task, *, seed: int, limits: Limits) -> Observation:
        self._client = await in_thread(lambda: self._factory(**self._options))
        result = await self._call(self._client.reset, seed=seed % 2**31)
        return Observation((*task.messages, {"role": "user", "content": self._text(result)}))

    async def step(self, action: Action, *, limits: Limits) -> StepResult:
        made = self._action(visible_text(action.text).strip())
        result = await self._call(self._client.step, made)
        reward = float(result.reward or 0.0)
        if not math.isfinite(reward):
            raise ValueError(f"the OpenEnv server returned the reward {reward}")
        messages = () if result.done else ({"role": "user", "content": self._text(result)},)
        return StepResult(messages, {"environment": reward}, terminated=bool(result.done))

    async def close(self) -> None:
        """Ends the server's session; it would hold its slot otherwise."""
        client, self._client = self._client, None
        if client is not None:
            await self._call(client.close)

    def _text(self, result: Any) -> str:
        observation = result.observation
        return str(getattr(observation, self._field) if self._field else observation)

    async def _call(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if inspect.iscoroutinefunction(fn):
            return await fn(*args, **kwargs)
        value = await in_thread(lambda: fn(*args, **kwargs))
        return await value if inspect.isawaitable(value) else value
