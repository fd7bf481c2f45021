"""The trainer ranks as one object: what is collective is called on all of them at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray

from rl.orchestration.pool import RolloutPool
from rl.orchestration.waiting import TrainerDied, WorkerDied, first_cause, wait_all, wait_for
from rl.training.batch import StepBatch, StepResult
from rl.types import PolicyVersion

log = logging.getLogger(__name__)


class TrainerGroup:
    """All DeepSpeed ranks.

    Args:
        spawn: makes the actor of a rank.
        ranks: number of ranks.
        start_timeout: seconds for loading and the first compile of DeepSpeed's extension.
        timeout: seconds for one training phase.
        sync_timeout: seconds for one publish.
    """

    def __init__(
        self,
        spawn: Callable[[int], Any],
        *,
        ranks: int,
        start_timeout: float,
        timeout: float,
        sync_timeout: float,
    ) -> None:
        self._spawn = spawn
        self._ranks = ranks
        self._start_timeout, self._timeout, self._sync_timeout = start_timeout, timeout, sync_timeout
        self.actors: list[Any] = []

    async def start(self) -> None:
        self.actors = [self._spawn(rank) for rank in range(self._ranks)]
        host, port = await wait_for(
            self.actors[0].address.remote(), seconds=self._start_timeout, who="trainer rank 0", doing="its start"
        )
        await self._all("start", host, port, doing="its start", seconds=self._start_timeout)

    async def gpu_ids(self) -> list[list[str]]:
        return await self._all("gpu_ids", doing="naming its GPUs", seconds=60)

    async def train(self, batches: Sequence[StepBatch]) -> StepResult:
        """One step; ``batches[r]`` goes to rank ``r``. Results are already reduced over ranks."""
        if len(batches) != len(self.actors):
            raise ValueError(f"{len(batches)} batches for {len(self.actors)} ranks")
        calls = [
            (actor.train.remote(batch), actor, f"trainer rank {rank}")
            for rank, (actor, batch) in enumerate(zip(self.actors, batches, strict=True))
        ]
        return (await _results(calls, seconds=self._timeout, doing="training"))[0]

    async def logprobs(self, rows: Sequence[Sequence[int]], temperature: float) -> list[Any]:
        return (await self._all("logprobs", rows, temperature, doing="log-probs", seconds=self._timeout))[0]

    async def publish(self, version: PolicyVersion, pool: RolloutPool) -> None:
        """Sends the current weights to every engine and commits them on both sides."""
        manifest = (await self._all("begin_publish", version, doing="begin_publish", seconds=self._sync_timeout))[0]
        try:
            if manifest.transport == "file":
                await self._send()
                await pool.update(manifest)
            else:
                await pool.update(manifest, meet=self._send)
        except BaseException:
            await self._all("abort_publish", doing="abort_publish", seconds=self._sync_timeout)
            raise
        await self._all("commit_publish", doing="commit_publish", seconds=self._sync_timeout)

    async def perturb(self, seed: int) -> None:
        await self._all("perturb", seed, doing="the probe's noise", seconds=self._timeout)

    async def restore(self) -> None:
        await self._all("restore", doing="restoring after the probe", seconds=self._timeout)

    async def save(self, folder: Path) -> None:
        """Every rank copies its state; `written` says when the files are there."""
        await self._all("save", str(folder), doing="saving", seconds=self._timeout)

    async def written(self) -> None:
        """Waits for the files of `save`, which are written while other calls go on."""
        await self._all("written", doing="writing a checkpoint", seconds=self._timeout)

    async def load(self, folder: Path) -> None:
        await self._all("load", str(folder), doing="loading", seconds=self._timeout)

    async def reset(self) -> None:
        await self._all("reset", doing="going back to the initial weights", seconds=self._timeout)

    async def restart(self) -> None:
        """New ranks with the initial weights, in the place of all there are."""
        for actor in self.actors:
            ray.kill(actor)
        await self.start()

    async def stop(self) -> None:
        """Asks every rank to stop, then kills what does not."""
        calls = [(actor.stop.remote(), actor, f"trainer rank {rank}") for rank, actor in enumerate(self.actors)]
        try:
            await wait_all(calls, seconds=15, doing="its stop")
        except Exception as error:  # the run is over; the processes are killed next whatever this was
            log.info("trainer: %s", error)
        for actor in self.actors:
            ray.kill(actor)
        self.actors = []

    async def _send(self) -> None:
        await self._all("send", doing="sending weights", seconds=self._sync_timeout)

    async def _all(self, method: str, *args: Any, doing: str, seconds: float) -> list[Any]:
        calls = [
            (getattr(actor, method).remote(*args), actor, f"trainer rank {rank}")
            for rank, actor in enumerate(self.actors)
        ]
        return await _results(calls, seconds=seconds, doing=doing)


async def _results(calls: Sequence[tuple[Any, Any, str]], *, seconds: float, doing: str) -> list[Any]:
    """`wait_all`; a rank's death goes before what it makes of the others, which may only see a broken connection."""
    try:
        return await wait_all(calls, seconds=seconds, doing=doing)
    except ExceptionGroup as group:
        deaths, _ = group.split(WorkerDied)
        if deaths is None:
            # A dead rank breaks the connection of the others, and their errors may come first.
            for _, actor, who in calls:
                try:
                    await wait_for(actor.ping.remote(), seconds=10, who=who, doing=doing)
                except WorkerDied as error:
                    raise TrainerDied(str(error)) from None
                except Exception:
                    continue
            raise
        raise TrainerDied(str(first_cause(deaths))) from None
