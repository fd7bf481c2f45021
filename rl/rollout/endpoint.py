"""Episodes of a model behind an OpenAI-compatible endpoint: text only, for evaluation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from envs.base import Action
from envs.endpoint import EndpointError, endpoint_policy
from envs.episode import Trace, play
from envs.program import is_program
from envs.registry import ENVIRONMENTS
from rl.config.errors import ConfigError
from rl.config.plugins import load_object
from rl.config.schema import Config
from rl.types import Finish, Request, Trajectory, sample_seed


class EndpointSampler:
    """Plays requests with a chat completions API in place of an engine.

    Trajectories hold messages, rewards and metrics but no tokens: they cannot be trained.

    Args:
        concurrency: episodes at once.

    Raises:
        ConfigError: the environment owns its loop.
    """

    def __init__(self, config: Config, url: str, model: str, key: str = "", *, concurrency: int = 8) -> None:
        self._config, self._url, self._model, self._key = config, url, model, key
        self._make: Callable[..., Any] = load_object(config.environment, ENVIRONMENTS)
        if is_program(self._make(**config.environment_options)):
            raise ConfigError(f"environment {config.environment} owns its loop: play it with hone play --endpoint")
        self._gate = asyncio.Semaphore(concurrency)
        self._answered = False
        rollout = config.rollout
        self._context = rollout.max_model_len or config.prompt.max_tokens + rollout.max_response_tokens

    async def rollout(self, request: Request) -> list[Trajectory]:
        """All samples of a request, in order.

        Raises:
            ConfigError: the endpoint has not answered a single call yet and refuses or is not there.
        """
        return list(await asyncio.gather(*(self._episode(request, i) for i in range(request.samples))))

    async def abort(self) -> None:
        """Nothing to stop: requests end with their tasks."""

    async def _episode(self, request: Request, offset: int) -> Trajectory:
        index, sampling = request.first_sample + offset, request.sampling_of(offset)
        seed = sample_seed(self._config.seed, request.task.task_id, request.draw, request.kind, index)
        more: dict[str, Any] = {"top_p": sampling.top_p, "seed": seed % 2**31}
        if sampling.stop:
            more["stop"] = list(sampling.stop)
        ask = endpoint_policy(
            self._url,
            self._model,
            self._key,
            temperature=sampling.temperature,
            max_tokens=sampling.max_tokens,
            more=more,
        )
        fault: EndpointError | None = None

        async def policy(messages: Sequence[Any], tools: Sequence[Any]) -> Action:
            nonlocal fault
            try:
                action = await ask(messages, tools)
            except EndpointError as error:
                fault = error
                raise
            self._answered = True
            return action

        async with self._gate:
            trace = await play(
                self._make(**self._config.environment_options),
                request.task,
                policy,
                seed=seed,
                context=self._context,
                timeout_s=self._config.rollout.episode_timeout_s,
            )
        if fault is not None and not self._answered:
            raise ConfigError(f"--endpoint: {fault}") from fault
        return _trajectory(request, index, trace)


def _trajectory(request: Request, index: int, trace: Trace) -> Trajectory:
    finish = Finish(trace.finish)
    single = finish == Finish.DONE and len(trace.actions) == 1 and not trace.results[-1]["messages"]
    turns = {"turns": float(len(trace.actions))} if len(trace.actions) > 1 else {}
    return Trajectory(
        request_id=request.request_id,
        bundle_id=request.bundle_id,
        kind=request.kind,
        sample_index=index,
        seed=trace.seed,
        segments=[],
        messages=tuple(trace.messages),
        finish=Finish.STOP if single else finish,
        prompt_messages=len(trace.prompt),
        rewards=dict(trace.rewards),
        turn_rewards=[sum(r["rewards"].values()) for r in trace.results],
        metrics=trace.info | turns,
        error=trace.error,
    )
