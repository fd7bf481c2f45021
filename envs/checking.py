"""Does an environment keep its contract? Plays scripted and random episodes and says what is wrong."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envs.base import Action, Environment, Limits, Observation, StepResult, ToolCall
from envs.episode import Trace, play, replay
from rl.types import Message, Task

BLOCK_S = 0.25
"""A pause of the event loop longer than this stalls every other episode."""
ROLES = {"user", "tool", "system"}


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken promise."""

    where: str
    what: str


def count_tokens(text: str) -> int:
    return len(text) // 3 + 1


def limits(tokens: int = 8192, seconds: float = 60.0) -> Limits:
    return Limits(tokens, count_tokens, time.monotonic() + seconds)


async def check_environment(make: Callable[[], Environment], task: Task, *, episodes: int = 8) -> list[Problem]:
    """Everything that can be checked from outside; an empty list is good."""
    problems = _shape(make())
    if problems:
        return problems
    first, problems = await _first(make, task)
    if first is None:
        return problems
    problems += _observation_problems(first)
    problems += await _siblings(make, task, first)
    problems += await _closing(make, task)
    async with Heartbeat() as heart:
        for number in range(episodes):
            problems += await _episode(make, task, number)
    if heart.longest > BLOCK_S:
        problems.append(
            Problem("event loop", f"was blocked for {heart.longest:.2f} s; use asyncio.to_thread or a worker process")
        )
    return list(dict.fromkeys(problems))


def _shape(env: Any) -> list[Problem]:
    problems = []
    for name in ("reset", "step", "close"):
        method = getattr(env, name, None)
        if method is None:
            problems.append(Problem(name, "is missing"))
        elif not inspect.iscoroutinefunction(method):
            problems.append(Problem(name, "must be `async def`"))
    return problems


async def _first(make: Callable[[], Environment], task: Task) -> tuple[Observation | None, list[Problem]]:
    env = make()
    try:
        return await asyncio.wait_for(env.reset(task, seed=0, limits=limits()), 60), []
    except Exception as error:
        return None, [Problem("reset", f"raised {type(error).__name__}: {error}")]
    finally:
        await env.close()


def _observation_problems(first: Any) -> list[Problem]:
    if not isinstance(first, Observation):
        return [Problem("reset", f"returned {type(first).__name__}, not Observation")]
    problems = _message_problems("reset", first.messages, {*ROLES, "assistant"})
    if not first.messages:
        problems.append(Problem("reset", "gave no messages: there is nothing to answer"))
    names = []
    for schema in first.tools:
        function = schema.get("function", {})
        names.append(function.get("name"))
        if schema.get("type") != "function" or not function.get("name"):
            problems.append(Problem("tools", "a schema needs {'type': 'function', 'function': {'name': ...}}"))
        try:
            json.dumps(schema)
        except (TypeError, ValueError):
            problems.append(Problem("tools", f"the schema of {function.get('name')} is not JSON"))
    if len(set(names)) != len(names):
        problems.append(Problem("tools", "two tools have one name"))
    if sum(count_tokens(str(m.get("content"))) for m in first.messages) > 8192:
        problems.append(Problem("reset", "the prompt is longer than limits.tokens_left"))
    return problems


def _message_problems(where: str, messages: Any, roles: set[str]) -> list[Problem]:
    problems = []
    if not isinstance(messages, tuple):
        problems.append(Problem(where, f"messages are a {type(messages).__name__}, not a tuple"))
    for message in messages:
        if message.get("role") not in roles:
            problems.append(Problem(where, f"a message has the role {message.get('role')!r}"))
        if not isinstance(message.get("content"), str):
            problems.append(Problem(where, f"a message's content is {type(message.get('content')).__name__}, not text"))
    return problems


async def _siblings(make: Callable[[], Environment], task: Task, first: Observation) -> list[Problem]:
    """Eight episodes at once, each with a turn: fresh state, the same prompt."""
    envs = [make() for _ in range(8)]
    try:
        prompts = await asyncio.gather(*(e.reset(task, seed=0, limits=limits()) for e in envs))
        for env in envs[:4]:
            await env.step(Action("hello"), limits=limits())
        late = make()
        envs.append(late)
        prompts.append(await late.reset(task, seed=0, limits=limits()))
    except Exception as error:
        return [Problem("siblings", f"eight episodes at once: {type(error).__name__}: {error}")]
    finally:
        await asyncio.gather(*(e.close() for e in envs), return_exceptions=True)
    if any(p.messages != first.messages for p in prompts):
        return [Problem("reset", "the same task and seed gave different prompts: is state shared between episodes?")]
    return []


async def _closing(make: Callable[[], Environment], task: Task) -> list[Problem]:
    problems = []
    for name, steps in (("close before reset", 0), ("close twice", 1), ("close during a step", 2)):
        env = make()
        try:
            if steps:
                await env.reset(task, seed=0, limits=limits())
            if steps == 2:
                job = asyncio.create_task(env.step(Action("hello"), limits=limits()))
                await asyncio.sleep(0)
                job.cancel()
                await asyncio.gather(job, return_exceptions=True)
            await asyncio.wait_for(env.close(), 30)
            if steps == 1:
                await asyncio.wait_for(env.close(), 30)
        except Exception as error:
            problems.append(Problem(name, f"raised {type(error).__name__}: {error}"))
    return problems


async def _episode(make: Callable[[], Environment], task: Task, number: int) -> list[Problem]:
    rng = random.Random(number)
    problems: list[Problem] = []

    async def policy(messages: Sequence[Message], tools: Sequence[Any]) -> Action:
        return random_action(rng, tools)

    trace = await play(_Watched(make(), problems), task, policy, seed=number, count_tokens=count_tokens, max_turns=24)
    if trace.error:
        said = json.dumps(trace.actions[-1])[:300] if trace.actions else "reset"
        problems.append(Problem("episode", f"{trace.finish}: {trace.error}; after {said}"))
    elif number < 2:
        problems += await _replayed(make, task, trace)
    return problems


async def _replayed(make: Callable[[], Environment], task: Task, trace: Trace) -> list[Problem]:
    differences = await replay(make(), task, trace, count_tokens=count_tokens)
    return [Problem("replay", f"same actions, same seed: {d}") for d in differences[:3]]


def random_action(rng: random.Random, tools: Sequence[Any]) -> Action:
    """A turn that a policy may well produce: text, good and bad calls, a cut turn."""
    kinds = ["text", "empty", "boxed", "cut"]
    kinds += ["call", "call", "call", "two", "wrong_arguments", "unreadable", "unknown"] if tools else []
    kind = rng.choice(kinds)
    if kind == "cut":
        return Action('<tool_call>\n{"name": "', finish="length")
    if kind in ("text", "empty", "boxed"):
        return Action({"text": "I think so.", "empty": "", "boxed": "\\boxed{42}"}[kind])
    calls = {
        "unreadable": [ToolCall("", call_id="call_0", error="the call is not valid JSON: '{'")],
        "unknown": [ToolCall("no_such_tool", {"x": 1}, "call_0")],
        "wrong_arguments": [ToolCall(_name(rng.choice(tools)), {"no_such_argument": None}, "call_0")],
    }.get(kind)
    if calls is None:
        calls = [_random_call(rng, rng.choice(tools), i) for i in range(2 if kind == "two" else 1)]
    return Action("".join(f"<tool_call>{c.name}</tool_call>" for c in calls), tuple(calls))


def _name(schema: Mapping[str, Any]) -> str:
    return str(schema["function"]["name"])


def _random_call(rng: random.Random, schema: Mapping[str, Any], index: int) -> ToolCall:
    properties = schema["function"].get("parameters", {}).get("properties", {})
    values: dict[str, Any] = {
        "string": rng.choice(["a", "main.py", "x" * 500, "\0", "../.."]),
        "integer": rng.choice([0, 1, -1, 10**9]),
        "number": rng.choice([0.5, -1.0]),
        "boolean": rng.random() < 0.5,
        "array": [],
        "object": {},
    }
    arguments = {
        n: rng.choice(s["enum"]) if "enum" in s else values.get(s.get("type"), "a") for n, s in properties.items()
    }
    return ToolCall(_name(schema), arguments, f"call_{index}")


class _Watched:
    """Passes everything on and looks at what comes back."""

    def __init__(self, env: Environment, problems: list[Problem]) -> None:
        self._env = env
        self._problems = problems

    async def reset(self, task: Task, *, seed: int, limits: Limits) -> Observation:
        return await self._env.reset(task, seed=seed, limits=limits)

    async def step(self, action: Action, *, limits: Limits) -> StepResult:
        result = await self._env.step(action, limits=limits)
        if not isinstance(result, StepResult):
            raise TypeError(f"step returned {type(result).__name__}, not StepResult")
        self._problems += _message_problems("step", result.messages, ROLES)
        for name, value in [*result.rewards.items(), *result.info.items()]:
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                self._problems.append(Problem("step", f"{name!r} is {value!r}; rewards and info are finite numbers"))
        going = not (result.terminated or result.truncated or action.finish == "length")
        if going and not result.messages:
            self._problems.append(Problem("step", "the episode goes on without a message to answer"))
        answered = [m.get("tool_call_id") for m in result.messages if m.get("role") == "tool"]
        if going and answered and len(answered) < len(action.tool_calls):
            self._problems.append(Problem("step", f"{len(action.tool_calls)} calls, {len(answered)} replies"))
        size = sum(count_tokens(str(m.get("content"))) for m in result.messages)
        if going and size > limits.tokens_left:
            self._problems.append(
                Problem("step", f"the observation has {size} tokens where {limits.tokens_left} were left")
            )
        return result

    async def close(self) -> None:
        await self._env.close()


class Heartbeat:
    """The longest pause of the event loop."""

    longest = 0.0

    async def __aenter__(self) -> Heartbeat:
        self._job = asyncio.create_task(self._beat())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._job.cancel()
        await asyncio.gather(self._job, return_exceptions=True)

    async def _beat(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.02)
            self.longest = max(self.longest, time.monotonic() - before - 0.02)
