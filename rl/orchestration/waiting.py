"""Waiting for actors: every wait has a deadline and says who was waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import ray


class DeadlineError(RuntimeError):
    """Somebody did not answer in time."""


class WorkerDied(RuntimeError):
    """An actor's process is gone."""


class TrainerDied(WorkerDied):
    """A trainer rank's process is gone, and its state with it."""


def first_cause(error: BaseException) -> BaseException:
    """The first leaf of nested exception groups: the fault that started the others."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def wait_for(ref: Any, *, seconds: float, who: str, doing: str, actor: Any = None) -> Any:
    """The result of an actor call.

    Raises:
        DeadlineError: no answer in ``seconds``; carries the actor's last status if it still gives one.
        WorkerDied: the actor's process ended.
    """
    try:
        return await asyncio.wait_for(asyncio.wrap_future(ref.future()), seconds)
    except TimeoutError:
        status = await _last_status(actor)
        raise DeadlineError(f"{who} did not finish {doing} within {seconds:.0f} s; last status: {status}") from None
    except ray.exceptions.RayTaskError as error:
        raise error.as_instanceof_cause() from None
    except (ray.exceptions.ActorDiedError, ray.exceptions.ActorUnavailableError) as error:
        raise WorkerDied(f"{who} died while {doing}: {_first_line(error)}") from None


async def wait_all(refs: Sequence[tuple[Any, Any, str]], *, seconds: float, doing: str) -> list[Any]:
    """Results of several (ref, actor, name), in order; the first failure ends the wait."""
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(wait_for(ref, seconds=seconds, who=who, doing=doing, actor=actor))
            for ref, actor, who in refs
        ]
    return [task.result() for task in tasks]


async def _last_status(actor: Any) -> str:
    if actor is None:
        return "unknown"
    try:
        return str(await asyncio.wait_for(asyncio.wrap_future(actor.status.remote().future()), 5))
    except (TimeoutError, ray.exceptions.RayError):
        return "no answer to a status call either"


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "cause" in line.lower() or "reason" in line.lower()), lines[0])
