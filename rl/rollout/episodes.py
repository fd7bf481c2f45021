"""Episodes: an environment and an engine taking turns, recorded as tokens.

Ids are only appended to. The loss mask is true exactly on sampled tokens. A `Program`, which owns its
loop, plays against the gateway instead.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from envs.base import Action, Environment, Limits, StepResult
from envs.parsing import detect_family, parse_tool_calls
from envs.program import Program, is_program
from envs.registry import ENVIRONMENTS
from rl.config.plugins import load_object
from rl.config.schema import Config
from rl.data.prompts import PromptBuilder
from rl.rollout.engine import Engine
from rl.rollout.gateway import Gateway, run_program
from rl.types import Finish, Message, Request, Segment, Trajectory, TurnSpan, VersionSpan, sample_seed


class EpisodeRunner:
    """Runs the episodes of requests on one engine."""

    def __init__(self, engine: Engine, config: Config, tokenizer: Any) -> None:
        self._engine, self._config, self._tokenizer = engine, config, tokenizer
        self._prompts = PromptBuilder(tokenizer, config.prompt)
        self._family = detect_family(tokenizer.chat_template or "")
        self._make: Callable[..., Any] = load_object(config.environment, ENVIRONMENTS)
        self._gateway = Gateway()
        rollout = config.rollout
        self._context = rollout.max_model_len or config.prompt.max_tokens + rollout.max_response_tokens

    async def run(self, request: Request) -> list[Trajectory]:
        """All samples of a request, in order."""
        async with asyncio.TaskGroup() as group:
            jobs = [group.create_task(self._episode(request, i)) for i in range(request.samples)]
        return [job.result() for job in jobs]

    async def close(self) -> None:
        """Stops the gateway; programs that still talk to it get no answer."""
        await self._gateway.stop()

    async def _episode(self, request: Request, offset: int) -> Trajectory:
        if request.messages is not None:  # this sample has a prompt of its own
            request = replace(request, task=replace(request.task, messages=request.messages[offset]))
        made = self._make(**self._config.environment_options)
        if is_program(made):
            return await self._program(made, request, offset)
        return await self._turns(made, request, offset)

    async def _program(self, program: Program, request: Request, offset: int) -> Trajectory:
        await self._gateway.start()
        return await run_program(
            program,
            self._gateway,
            self._engine,
            self._prompts,
            request,
            offset,
            family=self._family,
            max_model_len=self._context,
            run_seed=self._config.seed,
            timeout_s=self._config.rollout.episode_timeout_s,
        )

    async def _turns(self, environment: Environment, request: Request, offset: int) -> Trajectory:
        index = request.first_sample + offset
        seed = sample_seed(self._config.seed, request.task.task_id, request.draw, request.kind, index)
        episode = _Episode(self, request, offset, index)
        deadline = time.monotonic() + self._config.rollout.episode_timeout_s
        finish, error = Finish.ABORTED, None
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + deadline - time.monotonic()):
                finish = await episode.play(environment, seed, deadline)
        except TimeoutError:
            finish, error = Finish.TIMEOUT, "the episode's deadline passed"
        except EnvironmentFault as fault:
            finish, error = Finish.ENV_ERROR, str(fault)
        finally:
            try:
                await asyncio.wait_for(environment.close(), 30)
            except Exception as fault:  # user code; the episode's result stands
                error = error or f"close: {type(fault).__name__}: {fault}"
        return episode.trajectory(seed, finish, error)


class EnvironmentFault(RuntimeError):
    """An environment raised; ends its episode, not its siblings."""


class _Episode:
    """One episode in the making."""

    def __init__(self, runner: EpisodeRunner, request: Request, offset: int, index: int) -> None:
        self.runner, self.request, self.index = runner, request, index
        self.sampling = request.sampling_of(offset)
        self.messages: list[Message] = []
        self.prompt_messages = 0
        self.segments: list[Segment] = []
        self.rewards: dict[str, float | None] = {}
        self.turn_rewards: list[float] = []
        self.metrics: dict[str, float] = {}
        self.turn = 0
        self._start([])

    def _start(self, ids: list[int]) -> None:
        self.ids, self.mask, self.logprobs = list(ids), [False] * len(ids), [0.0] * len(ids)
        self.versions: list[VersionSpan] = []
        self.turns: list[TurnSpan] = []

    async def play(self, env: Environment, seed: int, deadline: float) -> Finish:
        runner = self.runner
        first = await self._guard(env.reset(self.request.task, seed=seed, limits=self._limits(deadline)))
        self.messages, tools = [dict(m) for m in first.messages], first.tools
        self.prompt_messages = len(self.messages)
        self._count(first.info)
        self._start(runner._prompts.encode(self.messages, tools))
        while True:
            if len(self.ids) >= runner._context:
                return Finish.CONTEXT
            action, finish = await self._sample(tools)
            if finish == Finish.ABORTED:
                return finish
            result = await self._guard(env.step(action, limits=self._limits(deadline)))
            self._account(result)
            if result.terminated or result.truncated or finish == Finish.LENGTH:
                if finish == Finish.LENGTH:
                    return Finish.LENGTH
                one_turn = self.turn == 1 and not result.messages and result.terminated
                return Finish.MAX_TURNS if result.truncated else Finish.STOP if one_turn else Finish.DONE
            before = list(self.messages)
            self.messages += [dict(m) for m in result.messages]
            more = runner._prompts.extend(self.ids, before, list(result.messages), tools)
            if more is None:  # the template renders the past differently now: a new segment starts
                self._close_segment()
                self._start(runner._prompts.encode(self.messages, tools))
            else:
                self.ids += more
                self.mask += [False] * len(more)
                self.logprobs += [0.0] * len(more)

    async def _sample(self, tools: Any) -> tuple[Action, Finish]:
        runner, request = self.runner, self.request
        seed = sample_seed(
            runner._config.seed, request.task.task_id, request.draw, request.kind, self.index, self.turn + 1
        )
        out = await runner._engine.generate(
            self.ids, self.sampling, seed=seed, request_id=f"{request.request_id}:{self.index}:{self.turn}"
        )
        if out.finish == "aborted":
            return Action(""), Finish.ABORTED
        start = len(self.ids)
        self.ids += out.token_ids.tolist()
        self.mask += [True] * len(out.token_ids)
        self.logprobs += out.logprobs.tolist()
        self.versions += [VersionSpan(s.version, s.start + start, s.end + start) for s in out.version_spans]
        self.turns.append(TurnSpan(self.turn, start, len(self.ids)))
        self.turn += 1
        ids = out.token_ids.tolist()
        if ids and ids[-1] in self.sampling.stop_token_ids:
            ids = ids[:-1]
        text = runner._tokenizer.decode(ids, skip_special_tokens=False)
        self.messages.append({"role": "assistant", "content": text})
        calls = parse_tool_calls(text, runner._family) if tools else ()
        cut = out.finish == "length"
        return Action(text, calls, "length" if cut else "stop"), Finish.LENGTH if cut else Finish.STOP

    async def _guard(self, call: Any) -> Any:
        try:
            return await call
        except (TimeoutError, asyncio.CancelledError):
            raise
        except Exception as error:  # user code may raise anything
            raise EnvironmentFault(f"{type(error).__name__}: {error}") from error

    def _limits(self, deadline: float) -> Limits:
        left = max(0, self.runner._context - len(self.ids))
        return Limits(left, self.runner._prompts.count, deadline)

    def _account(self, result: StepResult) -> None:
        for name, value in result.rewards.items():
            self.rewards[name] = (self.rewards.get(name) or 0.0) + value
        self.turn_rewards.append(sum(result.rewards.values()))
        self._count(result.info)

    def _count(self, info: Any) -> None:
        for name, value in info.items():
            self.metrics[name] = self.metrics.get(name, 0.0) + value

    def _close_segment(self) -> None:
        if not self.ids:
            return
        self.segments.append(
            Segment(
                np.array(self.ids, np.int32),
                np.array(self.mask, bool),
                np.array(self.logprobs, np.float32),
                tuple(self.versions),
                tuple(self.turns),
                self.sampling.temperature,
            )
        )

    def trajectory(self, seed: int, finish: Finish, error: str | None) -> Trajectory:
        self._close_segment()
        return Trajectory(
            request_id=self.request.request_id,
            bundle_id=self.request.bundle_id,
            kind=self.request.kind,
            sample_index=self.index,
            seed=seed,
            segments=self.segments,
            messages=tuple(self.messages),
            finish=finish,
            prompt_messages=self.prompt_messages,
            rewards=self.rewards,
            turn_rewards=self.turn_rewards,
            metrics=self.metrics | ({"turns": float(self.turn)} if self.turn > 1 else {}),
            error=error,
        )
