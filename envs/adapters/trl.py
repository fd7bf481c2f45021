"""Objects made for TRL's `environment_factory`: `reset(**row)`, public methods as tools, maybe `get_reward()`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from envs.base import Action, Limits, Observation, StepResult
from envs.tools import Toolbox, in_thread
from rl.config.plugins import load_object
from rl.types import Message, Task


class TrlEnvironment:
    """One episode: it ends with the first turn that calls no tool.

    Args:
        factory: makes the object, or its name `package.module:attr` or `path/file.py:attr`.
        max_calls: tool calls after which the episode is truncated.
        timeout_s: limit of one call; the original has none.
    """

    def __init__(self, factory: str | Callable[[], Any], *, max_calls: int = 32, timeout_s: float = 30.0) -> None:
        self._factory = load_object(factory, {}) if isinstance(factory, str) else factory
        self._max_calls = max_calls
        self._timeout_s = timeout_s
        self._object: Any = None
        self._tools = Toolbox([])
        self._calls = 0

    async def reset(self, task: Task, *, seed: int, limits: Limits) -> Observation:
        self._object = await in_thread(self._factory)
        methods = inspect.getmembers(self._object, inspect.ismethod)
        skip = {"reset", "get_reward", "close"}
        self._tools = Toolbox(
            [m for name, m in methods if not name.startswith("_") and name not in skip], timeout_s=self._timeout_s
        )
        row = {**task.columns, "prompt": list(task.messages)}
        said = await _maybe_await(self._object.reset, row)
        messages = [dict(m) for m in task.messages]
        if said:  # appended to the last user message, as TRL does
            if messages and messages[-1]["role"] == "user":
                messages[-1]["content"] = f"{messages[-1]['content']}{said}"
            else:
                messages.append({"role": "user", "content": str(said)})
        return Observation(tuple(messages), self._tools.schemas)

    async def step(self, action: Action, *, limits: Limits) -> StepResult:
        if not action.tool_calls:
            return StepResult(rewards=await self._reward(), terminated=True)
        messages: list[Message] = []
        for call in action.tool_calls:  # in order: tool messages must follow the calls
            result = await self._tools.call(call, timeout_s=limits.seconds_left)
            name = call.name or "unknown"
            messages.append({"role": "tool", "name": name, "tool_call_id": call.call_id, "content": result.content})
        self._calls += len(action.tool_calls)
        if self._calls >= self._max_calls:
            return StepResult(tuple(messages), await self._reward(), truncated=True)
        return StepResult(tuple(messages))

    async def close(self) -> None:
        made, self._object = self._object, None
        if hasattr(made, "close"):
            await _maybe_await(made.close, {})

    async def _reward(self) -> dict[str, float]:
        if not hasattr(self._object, "get_reward"):
            return {}
        return {"environment": float(await _maybe_await(self._object.get_reward, {}))}


async def _maybe_await(fn: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    if inspect.iscoroutinefunction(fn):
        return await fn(**arguments)
    return await in_thread(lambda: fn(**arguments))
