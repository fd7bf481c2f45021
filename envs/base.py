"""The environment contract: text in, text out.

The rollout loop alone touches tokens. An environment is created for one episode and closed on every
path; hundreds run at once in one asyncio loop, so nothing here may block it (use `asyncio.to_thread`
or a worker process for slow work). Imports no torch, Ray, vLLM or DeepSpeed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from rl.types import Messages, Task


@dataclass(frozen=True, slots=True)
class Limits:
    """What an episode still may use."""

    tokens_left: int
    """Tokens that observations and answers may still take in the model's context."""
    count_tokens: Callable[[str], int]
    """Tokens of a text, with the policy's tokenizer."""
    deadline: float
    """`time.monotonic()` at which the episode ends with `timeout`."""

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as the policy wrote it, or why it cannot be read."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    call_id: str = ""
    error: str | None = None
    """Why the text could not be parsed; the environment answers with an observation."""


@dataclass(frozen=True, slots=True)
class Action:
    """One turn of the policy."""

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    finish: Literal["stop", "length"] = "stop"
    """`length`: the turn was cut off at its token budget."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The start of an episode."""

    messages: Messages
    """The whole prompt."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """JSON schemas (OpenAI's `{"type": "function", "function": ...}`) for the chat template."""
    info: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What the environment answers to an action."""

    messages: Messages = ()
    """Appended to the conversation, never trained on."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Named; summed by name over the episode and joined with the reward functions'."""
    terminated: bool = False
    """The task has ended by its own rules."""
    truncated: bool = False
    """A limit of the environment (turns) ended it."""
    info: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the step, summed by name over the episode."""


@runtime_checkable
class Environment(Protocol):
    """One episode. `environment_options` of the config are its constructor's keyword arguments."""

    async def reset(self, task: Task, *, seed: int, limits: Limits) -> Observation: ...

    async def step(self, action: Action, *, limits: Limits) -> StepResult: ...

    async def close(self) -> None:
        """Free everything; called exactly once, whatever happened."""
        ...
