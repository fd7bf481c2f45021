"""An OpenAI-compatible endpoint for agents that own their loop, recording the tokens of every call.

Each episode gets a base URL of its own. A call whose messages continue an earlier conversation of
that episode is appended to its segment: token ids are never decoded and encoded again. Any other
call (a sub-agent, a compacted history) starts a new segment.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from aiohttp import web

from envs.parsing import parse_tool_calls
from envs.program import Program
from rl.data.prompts import PromptBuilder
from rl.rollout.engine import Engine, Generation
from rl.types import (
    Finish,
    Message,
    Request,
    SamplingParams,
    Segment,
    Task,
    Trajectory,
    TurnSpan,
    VersionSpan,
    sample_seed,
)


@dataclass
class _Thread:
    """One conversation: a segment in the making."""

    known: list[str] = field(default_factory=list)
    """Fingerprint of each message as the agent sees it."""
    messages: list[Message] = field(default_factory=list)
    """The same messages with the policy's turns as sampled."""
    tools: str = ""
    ids: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[VersionSpan] = field(default_factory=list)
    turns: list[TurnSpan] = field(default_factory=list)
    prompt_messages: int = 0


class Session:
    """The calls of one episode."""

    def __init__(
        self,
        engine: Engine,
        builder: PromptBuilder,
        *,
        sampling: SamplingParams,
        seeds: Any,
        family: str,
        max_model_len: int,
        request_id: str,
    ) -> None:
        self._engine = engine
        self._builder = builder
        self._sampling = sampling
        self._seeds = seeds
        self._family = family
        self._max_model_len = max_model_len
        self._request_id = request_id
        self._threads: list[_Thread] = []
        self._lock = asyncio.Lock()
        self.calls = 0
        self.last_finish = Finish.STOP

    async def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """One chat completion.

        Raises:
            ValueError: the request cannot be served; the text says why.
        """
        messages = [_normal(m) for m in body.get("messages") or ()]
        if not messages:
            raise ValueError("`messages` is empty")
        tools = list(body.get("tools") or ())
        async with self._lock:
            thread = self._thread_of(messages, tools)
            turn = self.calls
            self.calls += 1
            room = self._max_model_len - len(thread.ids)
            if room < 1:
                self.last_finish = Finish.CONTEXT
                raise ValueError(f"the conversation has {len(thread.ids)} tokens, the context {self._max_model_len}")
            asked = body.get("max_completion_tokens") or body.get("max_tokens") or self._sampling.max_tokens
            params = replace(self._sampling, max_tokens=min(int(asked), self._sampling.max_tokens, room))
            made = await self._engine.generate(
                thread.ids, params, seed=self._seeds(turn), request_id=f"{self._request_id}/{turn}"
            )
            if made.finish == "aborted":
                self.last_finish = Finish.ABORTED
                raise ValueError("the run cancelled the episode")
            self.last_finish = Finish.LENGTH if made.finish == "length" else Finish.STOP
            return self._record(thread, turn, made, int(asked), bool(tools))

    def segments(self) -> list[Segment]:
        """What was sampled, one segment a conversation, each up to the policy's last turn."""
        made = []
        for t in self._threads:
            if t.turns:  # what came after the last turn was never answered, and may not fit the context
                end = t.turns[-1].end
                ids, mask = np.asarray(t.ids[:end], np.int32), np.asarray(t.mask[:end], bool)
                logprobs = np.asarray(t.logprobs[:end], np.float32)
                spans = tuple(t.versions), tuple(t.turns)
                made.append(Segment(ids, mask, logprobs, *spans, self._sampling.temperature))
        return made

    def conversation(self) -> tuple[tuple[Message, ...], int]:
        """The longest conversation and how many of its messages are prompt."""
        best = max(self._threads, key=lambda t: len(t.messages), default=_Thread())
        return tuple(best.messages), best.prompt_messages

    def _thread_of(self, messages: list[Message], tools: list[Any]) -> _Thread:
        """The conversation that these messages continue, extended by them; otherwise a new one."""
        prints = [_fingerprint(m) for m in messages]
        schema = json.dumps(tools, sort_keys=True)
        for thread in sorted(self._threads, key=lambda t: -len(t.known)):
            count = len(thread.known)
            new = messages[count:]
            if not new or thread.tools != schema or prints[:count] != thread.known or not thread.turns:
                continue
            if any(m["role"] == "assistant" for m in new):
                continue
            suffix = self._builder.extend(thread.ids, thread.messages, new, tools)
            if suffix is None:  # the template renders the past differently now
                continue
            self._append_given(thread, suffix)
            thread.known += prints[count:]
            thread.messages += new
            return thread
        thread = _Thread(known=prints, messages=list(messages), tools=schema, prompt_messages=len(messages))
        self._append_given(thread, self._builder.encode(messages, tools))
        self._threads.append(thread)
        return thread

    def _append_given(self, thread: _Thread, ids: Sequence[int]) -> None:
        thread.ids += ids
        thread.mask += [False] * len(ids)
        thread.logprobs += [0.0] * len(ids)

    def _record(self, thread: _Thread, turn: int, made: Generation, asked: int, tools: bool) -> dict[str, Any]:
        start = len(thread.ids)
        prompt_tokens = start
        thread.ids += [int(i) for i in made.token_ids]
        thread.mask += [True] * len(made.token_ids)
        thread.logprobs += [float(x) for x in made.logprobs]
        thread.versions += [VersionSpan(v, start + a, start + b) for v, a, b in made.version_spans]
        thread.turns.append(TurnSpan(turn, start, len(thread.ids)))
        raw = self._builder.tokenizer.decode(made.token_ids, skip_special_tokens=True)
        message = self._message(raw, turn, made.finish, tools)
        thread.messages.append({"role": "assistant", "content": raw})
        thread.known.append(_fingerprint(message))
        reason = "length" if made.finish == "length" else "tool_calls" if message.get("tool_calls") else "stop"
        return {
            "id": f"chatcmpl-{self._request_id}-{turn}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": "policy",
            "choices": [{"index": 0, "message": message, "finish_reason": reason, "logprobs": None}],
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": len(made.token_ids),
                "total_tokens": len(thread.ids),
            },
        }

    def _message(self, raw: str, turn: int, finish: str, tools: bool) -> Message:
        """The policy's turn as the agent gets it; unreadable calls stay in the text."""
        calls = parse_tool_calls(raw, self._family) if tools and finish != "length" else ()
        if not calls or any(c.error for c in calls):
            return {"role": "assistant", "content": raw}
        listed = [
            {
                "id": f"call_{turn}_{i}",
                "type": "function",
                "function": {"name": c.name, "arguments": json.dumps(c.arguments)},
            }
            for i, c in enumerate(calls)
        ]
        text = raw.partition("<tool_call>")[0].rstrip() if self._family == "hermes" else ""
        return {"role": "assistant", "content": text or None, "tool_calls": listed}


class Gateway:
    """Serves the sessions of one worker on a free port of the loopback interface."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._runner: web.AppRunner | None = None
        self._starting = asyncio.Lock()
        self._url = ""

    async def start(self) -> None:
        """Binds port 0, so that no other process can have taken it. Does nothing when it serves already."""
        async with self._starting:
            if self._runner is None:
                await self._bind()

    async def _bind(self) -> None:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_post("/{token}/v1/chat/completions", self._chat)
        app.router.add_get("/{token}/v1/models", self._models)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        self._runner, self._url = runner, f"http://{host}:{port}"

    async def stop(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def open(self, session: Session) -> tuple[str, str]:
        """A secret token and the base URL under which only this episode is served."""
        token = secrets.token_urlsafe(16)
        self._sessions[token] = session
        return token, f"{self._url}/{token}/v1"

    def close(self, token: str) -> None:
        """Later calls get 404: a left-over agent cannot add tokens to a finished episode."""
        self._sessions.pop(token, None)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        session = self._sessions.get(request.match_info["token"])
        if session is None:
            return _error(404, "this episode has ended")
        try:
            body = await request.json()
            if not isinstance(body, dict):
                raise ValueError("the body must be a JSON object")
            if int(body.get("n") or 1) != 1:
                raise ValueError("`n` must be 1: each call is one turn of the episode")
            reply = await session.complete(body)
        except (ValueError, TypeError, KeyError) as error:
            return _error(400, str(error))
        if not body.get("stream"):
            return web.json_response(reply)
        return await _stream(request, reply)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "policy", "object": "model"}]})


async def run_program(
    program: Program,
    gateway: Gateway,
    engine: Engine,
    builder: PromptBuilder,
    request: Request,
    offset: int,
    *,
    family: str,
    max_model_len: int,
    run_seed: int,
    timeout_s: float,
) -> Trajectory:
    """One episode of a program as a trajectory; cleans up on every path.

    Args:
        offset: which sample of the request.
        timeout_s: deadline of the whole episode.
    """
    index = request.first_sample + offset
    task: Task = request.task

    def seed_of(turn: int) -> int:
        return sample_seed(run_seed, task.task_id, request.draw, request.kind, index, turn)

    session = Session(
        engine,
        builder,
        sampling=request.sampling_of(offset),
        seeds=seed_of,
        family=family,
        max_model_len=max_model_len,
        request_id=f"{request.request_id}/{index}",
    )
    token, url = gateway.open(session)
    rewards: Mapping[str, float] = {}
    error: str | None = None
    started = time.monotonic()
    finish = Finish.DONE
    try:
        async with asyncio.timeout(timeout_s):
            rewards = await program.run(task, base_url=url, seed=seed_of(0), deadline=started + timeout_s)
        finish = session.last_finish if session.last_finish.truncated else Finish.DONE
        if not session.calls:
            finish, error = Finish.ENV_ERROR, "the program made no call"
    except TimeoutError:
        finish, error = Finish.TIMEOUT, f"no end within {timeout_s:g} s"
    except Exception as caught:  # user code: its failure ends this episode only
        finish, error = Finish.ENV_ERROR, f"{type(caught).__name__}: {caught}"
    finally:
        gateway.close(token)
        try:
            await asyncio.wait_for(program.close(), 30)
        except Exception as caught:  # the episode's result stands
            error = error or f"close: {type(caught).__name__}: {caught}"
    messages, prompt_messages = session.conversation()
    return Trajectory(
        request.request_id,
        request.bundle_id,
        request.kind,
        index,
        seed_of(0),
        session.segments(),
        messages,
        finish,
        prompt_messages,
        rewards=dict(rewards),
        metrics={"program/calls": float(session.calls), "program/seconds": time.monotonic() - started},
        error=error,
    )


def _normal(message: Any) -> Message:
    """A message with its content as text (agents may send a list of parts)."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ValueError("each message needs a role")
    content = message.get("content")
    if isinstance(content, list):
        kinds = {p.get("type") for p in content}
        if kinds - {"text"}:
            raise ValueError(f"only text parts are understood, not {', '.join(map(str, kinds - {'text'}))}")
        content = "".join(p["text"] for p in content)
    return {**message, "content": content if content is not None else ""}


def _fingerprint(message: Message) -> str:
    """What must be equal for two messages to be the same turn, however a client re-serialises it."""
    calls = []
    for call in message.get("tool_calls") or ():
        arguments = call["function"].get("arguments") or "{}"
        if isinstance(arguments, str):
            with contextlib.suppress(ValueError):  # an unreadable one is compared as text
                arguments = json.loads(arguments)
        calls.append([call["function"]["name"], arguments])
    content = str(message.get("content") or "")
    return json.dumps([message["role"], content, calls, message.get("tool_call_id")], sort_keys=True)


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "invalid_request_error"}}, status=status)


async def _stream(request: web.Request, reply: dict[str, Any]) -> web.StreamResponse:
    """The whole turn as one event: agents that stream get what they understand."""
    choice = reply["choices"][0]
    delta = dict(choice["message"])
    if delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": i, **c} for i, c in enumerate(delta["tool_calls"])]
    events = [
        {"index": 0, "delta": delta, "finish_reason": None},
        {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]},
    ]
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for event in events:
        chunk = {**reply, "object": "chat.completion.chunk", "choices": [event]}
        await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
    await response.write(b"data: [DONE]\n\n")
    return response
