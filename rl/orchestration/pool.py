"""The rollout pool: requests in, trajectories out, over workers that may die."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray

from rl.orchestration.waiting import WorkerDied, wait_all, wait_for
from rl.sync.base import WeightManifest
from rl.types import Request, Trajectory

log = logging.getLogger(__name__)
MAX_RESTARTS = 5
"""Deaths of one worker without a finished request in between, before the run ends."""


@dataclass(slots=True)
class Member:
    """One worker and what the pool knows of it."""

    index: int
    actor: Any
    outstanding: int = 0
    """Samples requested and not yet returned."""
    deaths: int = 0
    alive: bool = True
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def who(self) -> str:
        return f"rollout worker {self.index}"


class RolloutPool:
    """Routes requests to the least busy worker and replaces workers that die.

    Args:
        spawn: makes the actor of a worker index; called again for each replacement.
        workers: number of engines.
        capacity: samples that may be outstanding at one worker; more wait in the pool.
        static: route by order of submission instead of load, for repeatable runs.
    """

    def __init__(
        self,
        spawn: Callable[[int], Any],
        *,
        workers: int,
        capacity: int,
        static: bool,
        start_timeout: float,
        request_timeout: float,
        sync_timeout: float,
    ) -> None:
        self._spawn = spawn
        self._capacity = capacity
        self._static = static
        self._start_timeout, self._request_timeout, self._sync_timeout = start_timeout, request_timeout, sync_timeout
        self._room = asyncio.Condition()
        self._submitted = 0
        self._committed: WeightManifest | None = None
        self.members = [Member(i, None) for i in range(workers)]
        self.devices: list[tuple[str, ...]] = [() for _ in range(workers)]
        """GPU ids of each engine where it shares those of trainer ranks."""
        self.restarts = 0
        self.republish: Callable[[], Awaitable[None]] | None = None
        """Publishes the current weights again, for a replaced worker, where the transport keeps no copy."""

    async def start(self) -> None:
        for member in self.members:
            member.actor = self._spawn(member.index)
        await self._all("start", doing="its start", seconds=self._start_timeout)

    async def rollout(self, request: Request) -> list[Trajectory]:
        """Samples a request; runs it again elsewhere when its worker dies."""
        order = self._submitted
        self._submitted += 1
        while True:
            member = await self._reserve(request.samples, order)
            actor = member.actor
            try:
                result = await wait_for(
                    actor.rollout.remote(request),
                    seconds=self._request_timeout,
                    who=member.who,
                    doing=f"request {request.request_id}",
                    actor=actor,
                )
                member.deaths = 0
                return result
            except WorkerDied as error:
                await self._replace(member, actor, error)
            finally:
                await self._release(member, request.samples)

    async def update(self, manifest: WeightManifest, meet: Callable[[], Any] | None = None) -> None:
        """Loads a publish into every worker.

        Args:
            meet: for transports whose two ends run at the same time, the sender's half.
        """
        await self._all("begin_update", manifest, doing="begin_update", seconds=self._sync_timeout)
        receiving = self._all("receive_weights", manifest, doing="receive_weights", seconds=self._sync_timeout)
        if meet is None:
            await receiving
        else:
            await asyncio.gather(receiving, meet())
        await self._all("commit_update", manifest, doing="commit_update", seconds=self._sync_timeout)
        self._committed = manifest

    async def score(self, rows: Sequence[Sequence[int]], temperature: float) -> list[list[Any]]:
        """Log-probs of the same rows from every worker."""
        return await self._all("score", rows, temperature, doing="scoring", seconds=self._request_timeout)

    async def abort(self) -> None:
        await self._all("abort", doing="abort", seconds=30)

    async def sleep(self) -> None:
        """Engines free the memory of weights and cache."""
        await self._all("sleep", doing="sleep", seconds=self._sync_timeout)

    async def wake(self) -> None:
        await self._all("wake", doing="wake", seconds=self._sync_timeout)

    async def statuses(self) -> list[dict[str, Any]]:
        return await self._all("status", doing="status", seconds=30)

    async def stop(self) -> None:
        """Asks every worker to stop, then kills what does not."""
        for member in self.members:
            if member.actor is None:
                continue
            try:
                await wait_for(member.actor.stop.remote(), seconds=15, who=member.who, doing="its stop")
            except Exception as error:  # the run is over; the process is killed next whatever this was
                log.info("%s: %s", member.who, error)
            ray.kill(member.actor)
            member.actor = None

    async def _all(self, method: str, *args: Any, doing: str, seconds: float) -> list[Any]:
        calls = [(getattr(m.actor, method).remote(*args), m.actor, m.who) for m in self.members]
        return await wait_all(calls, seconds=seconds, doing=doing)

    async def _reserve(self, samples: int, order: int) -> Member:
        def free() -> Member | None:
            if self._static:
                candidates = [self.members[order % len(self.members)]]
            else:
                candidates = sorted(self.members, key=lambda m: (m.outstanding, m.index))
            for member in candidates:
                if member.alive and (member.outstanding == 0 or member.outstanding + samples <= self._capacity):
                    return member
            return None

        async with self._room:
            await self._room.wait_for(lambda: free() is not None)
            member = free()
            assert member is not None
            member.outstanding += samples
            return member

    async def _release(self, member: Member, samples: int) -> None:
        async with self._room:
            member.outstanding -= samples
            self._room.notify_all()

    async def _replace(self, member: Member, dead: Any, error: WorkerDied) -> None:
        async with member.lock:
            if member.actor is not dead:  # another request of this worker was first
                return
            member.alive = False
            member.deaths += 1
            self.restarts += 1
            if member.deaths > MAX_RESTARTS:
                raise WorkerDied(f"{member.who} died {member.deaths} times in a row; giving up. {error}")
            log.warning("%s; starting it again (%d of %d)", error, member.deaths, MAX_RESTARTS)
            await asyncio.sleep(min(30.0, 0.5 * 2 ** (member.deaths - 1)))
            member.actor = self._spawn(member.index)
            calls: list[tuple[str, tuple[Any, ...], float]] = [("start", (), self._start_timeout)]
            if self._committed is not None and self._committed.transport == "file":
                calls += [
                    (name, (self._committed,), self._sync_timeout)
                    for name in ("begin_update", "receive_weights", "commit_update")
                ]
            for name, args, seconds in calls:
                await wait_for(getattr(member.actor, name).remote(*args), seconds=seconds, who=member.who, doing=name)
            if self._committed is not None and self._committed.transport != "file":
                assert self.republish is not None, "a collective publish needs its sender again"
                await self.republish()
            member.alive = True
        async with self._room:
            self._room.notify_all()
