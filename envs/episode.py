"""Episodes as text, without a trainer: play them, save them as traces, replay them.

`play` lets any policy act: a script, a person, an endpoint. The rollout loop of a run does the same
with tokens. A trace holds all that was said; replaying its actions must give every observation
again, byte for byte.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from envs.base import Action, Environment, Limits, StepResult, ToolCall
from rl.types import Finish, Message, Task

Policy = Callable[[Sequence[Message], Sequence[Any]], Awaitable[Action]]
"""Given the conversation and the tool schemas, the next turn."""


@dataclass
class Trace:
    """One episode as it was seen from outside."""

    task_id: str
    seed: int
    prompt: list[Message] = field(default_factory=list)
    tools: list[Any] = field(default_factory=list)
    actions: list[dict[str, Any]] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)
    """Without timings: equal episodes have equal traces."""
    finish: str = ""
    error: str | None = None

    @property
    def rewards(self) -> dict[str, float]:
        """By name, summed over the turns."""
        return _sums(r["rewards"] for r in self.results)

    @property
    def info(self) -> dict[str, float]:
        return _sums(r["info"] for r in self.results)

    @property
    def messages(self) -> list[Message]:
        """The whole conversation."""
        said = list(self.prompt)
        for i, action in enumerate(self.actions):
            said.append({"role": "assistant", "content": action["text"]})
            said += self.results[i]["messages"] if i < len(self.results) else []
        return said

    def append_to(self, path: Path) -> None:
        """Adds one line to a JSONL file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as out:
            out.write(json.dumps(asdict(self), ensure_ascii=False, sort_keys=True) + "\n")


def read_traces(path: Path) -> list[Trace]:
    return [Trace(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines() if line]


async def play(
    env: Environment,
    task: Task,
    policy: Policy,
    *,
    seed: int = 0,
    count_tokens: Callable[[str], int] = lambda text: len(text) // 3 + 1,
    context: int = 32_768,
    max_turns: int = 64,
    timeout_s: float = 600.0,
) -> Trace:
    """Plays one episode and closes the environment on every path.

    A failure of the environment ends the episode with `env_error` and its message; the deadline
    covers reset, steps and the policy. Cancellation passes through after `close`.
    """
    trace = Trace(task.task_id, seed)
    deadline = time.monotonic() + timeout_s
    try:
        async with asyncio.timeout(timeout_s):
            trace.finish = await _turns(env, task, policy, trace, count_tokens, context, max_turns, deadline)
    except TimeoutError:
        trace.finish, trace.error = Finish.TIMEOUT.value, f"no end within {timeout_s:g} s"
    except Exception as error:  # whatever user code raises ends this episode, not its siblings
        trace.finish, trace.error = Finish.ENV_ERROR.value, f"{type(error).__name__}: {error}"
    finally:
        await _close(env, trace)
    return trace


async def _turns(
    env: Environment,
    task: Task,
    policy: Policy,
    trace: Trace,
    count_tokens: Callable[[str], int],
    context: int,
    max_turns: int,
    deadline: float,
) -> str:
    first = await env.reset(task, seed=trace.seed, limits=Limits(context, count_tokens, deadline))
    trace.prompt, trace.tools = [dict(m) for m in first.messages], [dict(t) for t in first.tools]
    for _ in range(max_turns):
        used = sum(count_tokens(str(m.get("content") or "")) for m in trace.messages)
        if used >= context:
            return Finish.CONTEXT.value
        action = await policy(trace.messages, trace.tools)
        trace.actions.append(_plain_action(action))
        left = max(context - used - count_tokens(action.text), 0)
        result = await env.step(action, limits=Limits(left, count_tokens, deadline))
        trace.results.append(_plain_result(result))
        if result.terminated:
            return Finish.DONE.value
        if result.truncated:
            return Finish.LENGTH.value if action.finish == "length" else Finish.MAX_TURNS.value
        if action.finish == "length":
            return Finish.LENGTH.value
    return Finish.MAX_TURNS.value


async def _close(env: Environment, trace: Trace) -> None:
    try:
        await asyncio.wait_for(env.close(), 30)
    except Exception as error:
        trace.error = trace.error or f"close: {type(error).__name__}: {error}"


async def replay(env: Environment, task: Task, trace: Trace, **options: Any) -> list[str]:
    """Plays a trace's actions again; the differences, one line each, none when all is the same."""
    actions = iter(trace.actions)

    async def recorded(messages: Sequence[Message], tools: Sequence[Any]) -> Action:
        action = next(actions)
        return Action(action["text"], tuple(ToolCall(**c) for c in action["tool_calls"]), action["finish"])

    again = await play(env, task, recorded, seed=trace.seed, max_turns=max(len(trace.actions), 1), **options)
    differences = []
    if _text(again.prompt) != _text(trace.prompt):
        differences.append("the prompt differs")
    for i, (old, new) in enumerate(zip(trace.results, again.results, strict=False)):
        differences += [f"turn {i}: {key} differs" for key in old if _text(old[key]) != _text(new[key])]
    if len(again.results) != len(trace.results):
        differences.append(f"{len(again.results)} turns instead of {len(trace.results)}")
    return differences


def scripted(turns: Sequence[str], family: str = "hermes", finish: Any = "stop") -> Policy:
    """A policy that says these turns, then nothing."""
    from envs.parsing import parse_tool_calls

    left = list(turns)

    async def act(messages: Sequence[Message], tools: Sequence[Any]) -> Action:
        text = left.pop(0) if left else ""
        return Action(text, parse_tool_calls(text, family), finish)

    return act


async def play_all(
    make: Callable[[], Environment],
    tasks: Sequence[Task],
    policy: Callable[[], Policy],
    *,
    concurrency: int = 16,
    **options: Any,
) -> list[Trace]:
    """One episode a task, `concurrency` at once, in the tasks' order."""
    gate = asyncio.Semaphore(concurrency)

    async def one(task: Task) -> Trace:
        async with gate:
            return await play(make(), task, policy(), **options)

    return await asyncio.gather(*(one(t) for t in tasks))


def _plain_action(action: Action) -> dict[str, Any]:
    calls = [asdict(c) for c in action.tool_calls]
    return {"text": action.text, "tool_calls": calls, "finish": action.finish}


def _plain_result(result: StepResult) -> dict[str, Any]:
    return {
        "messages": [dict(m) for m in result.messages],
        "rewards": dict(result.rewards),
        "terminated": result.terminated,
        "truncated": result.truncated,
        "info": dict(result.info),
    }


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


def _sums(parts: Any) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0.0) + value
    return total
