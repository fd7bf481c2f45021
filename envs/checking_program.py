"""Does a program that owns its loop keep its contract? Runs it against an endpoint that says the same each time."""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import psutil

from envs.checking import BLOCK_S, Heartbeat, Problem
from envs.program import Program
from rl.types import Task

SIBLINGS = 4


class ScriptedEndpoint:
    """A chat completions API on a free port of the loopback interface, and not a model.

    Under each episode's own path it gives the same text to every call, refuses (`refuse`) or never
    answers (`stall`).
    """

    def __init__(self, text: str = "I think so.") -> None:
        self._text = text
        self.calls: dict[str, int] = {}
        self.waiting = asyncio.Event()
        """Set by the first call that is never answered."""

    async def __aenter__(self) -> ScriptedEndpoint:
        from aiohttp import web

        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_post("/{episode}/{how}/v1/chat/completions", self._chat)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    def url(self, episode: str, how: str = "answer") -> str:
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}/{episode}/{how}/v1"

    async def _chat(self, request: Any) -> Any:
        from aiohttp import web

        episode, how = request.match_info["episode"], request.match_info["how"]
        self.calls[episode] = self.calls.get(episode, 0) + 1
        if how == "stall":
            self.waiting.set()
            await asyncio.sleep(3600)
        if how == "refuse" or self.calls[episode] > 64:
            reason = "the conversation has 40000 tokens, the context 32768"
            return web.json_response({"error": {"message": reason, "type": "invalid_request_error"}}, status=400)
        message = {"role": "assistant", "content": self._text}
        return web.json_response(
            {
                "id": f"chatcmpl-{self.calls[episode]}",
                "object": "chat.completion",
                "created": int(time.time()),
                "model": "policy",
                "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            }
        )


async def check_program(make: Callable[[], Program], task: Task, *, seconds: float = 60.0) -> list[Problem]:
    """Everything that can be checked from outside; an empty list is good.

    Args:
        seconds: deadline of one episode.
    """
    program = make()
    problems = [
        Problem(name, "is missing" if getattr(program, name, None) is None else "must be `async def`")
        for name in ("run", "close")
        if not inspect.iscoroutinefunction(getattr(program, name, None))
    ]
    if problems:
        return problems
    async with ScriptedEndpoint() as endpoint, Heartbeat() as heart:
        problems += await _closed("close before run", program)
        for found in await asyncio.gather(*(_answered(make, endpoint, task, i, seconds) for i in range(SIBLINGS))):
            problems += found
        if not problems:  # otherwise these only repeat it
            problems += await _refused(make, endpoint, task, seconds)
            problems += await _cancelled(make, endpoint, task, seconds)
    if heart.longest > BLOCK_S:
        problems.append(
            Problem("event loop", f"was blocked for {heart.longest:.2f} s; use asyncio.to_thread or a process")
        )
    return list(dict.fromkeys(problems))


async def _answered(
    make: Callable[[], Program], endpoint: ScriptedEndpoint, task: Task, number: int, seconds: float
) -> list[Problem]:
    """One of several episodes at once, each with its own address."""
    program, name = make(), f"episode{number}"
    try:
        run = program.run(task, base_url=endpoint.url(name), seed=0, deadline=time.monotonic() + seconds)
        rewards = await asyncio.wait_for(run, seconds)
    except TimeoutError:
        return [Problem("run", f"no end within {seconds:g} s"), *await _closed("close", program)]
    except Exception as error:
        return [Problem("run", f"raised {type(error).__name__}: {error}"), *await _closed("close", program)]
    problems = _reward_problems(rewards)
    if not endpoint.calls.get(name):
        problems.append(Problem("run", "made no call to its base_url: there is nothing to train on"))
    return problems + await _closed("close", program) + await _closed("close twice", program)


def _reward_problems(rewards: Any) -> list[Problem]:
    if not isinstance(rewards, Mapping):
        return [Problem("run", f"returned {type(rewards).__name__}, not a mapping of rewards")]
    return [
        Problem("run", f"reward {name!r} is {value!r}; rewards are finite numbers")
        for name, value in rewards.items()
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value)
    ]


async def _refused(
    make: Callable[[], Program], endpoint: ScriptedEndpoint, task: Task, seconds: float
) -> list[Problem]:
    """A conversation that outgrew the context is refused: raising and returning are good, trying for ever is not."""
    program = make()
    deadline = time.monotonic() + seconds
    try:
        await asyncio.wait_for(
            program.run(task, base_url=endpoint.url("refused", "refuse"), seed=0, deadline=deadline), seconds
        )
    except TimeoutError:
        return [Problem("run", f"does not end within {seconds:g} s when the endpoint refuses with 400")]
    except Exception:  # that is its right
        return []
    finally:
        await _closed("close", program)
    return []


async def _cancelled(
    make: Callable[[], Program], endpoint: ScriptedEndpoint, task: Task, seconds: float
) -> list[Problem]:
    """Cut off while it waits for a turn: it ends, and so do the processes that it started."""
    program, before = make(), _children()
    job = asyncio.create_task(
        program.run(task, base_url=endpoint.url("stalled", "stall"), seed=0, deadline=time.monotonic() + seconds)
    )
    waiting = asyncio.create_task(endpoint.waiting.wait())
    await asyncio.wait({job, waiting}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    job.cancel()
    _, running = await asyncio.wait({job}, timeout=10)
    problems = [Problem("run", "goes on 10 s after it was cancelled")] if running else []
    problems += await _closed("close after cancelling", program)
    for _ in range(20):
        if not (left := _children() - before):
            return problems
        await asyncio.sleep(0.1)
    return [*problems, Problem("close", f"left {len(left)} processes running")]


async def _closed(where: str, program: Program) -> list[Problem]:
    try:
        await asyncio.wait_for(program.close(), 30)
    except Exception as error:
        return [Problem(where, f"raised {type(error).__name__}: {error}")]
    return []


def _children() -> set[int]:
    alive = psutil.Process(os.getpid()).children(recursive=True)
    return {p.pid for p in alive if p.status() != psutil.STATUS_ZOMBIE}
