"""The Ray actors: thin shells around `RolloutWorker` and `TrainerRank`.

Everything heavy is imported inside methods, after the process has been prepared: threads, devices
and log files are fixed before torch or vLLM look at them.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ray

from rl.config.schema import Config
from rl.sync.base import WeightManifest
from rl.training.batch import StepBatch, StepResult
from rl.types import PolicyVersion, Request, Trajectory


@dataclass(frozen=True, slots=True)
class ProcessSetup:
    """What an actor's process needs to know before it imports anything heavy."""

    name: str
    cwd: str
    log_file: str
    threads: int
    devices: tuple[str, ...] | None = None
    """Ids for ``CUDA_VISIBLE_DEVICES``; ``None`` keeps what Ray set, ``()`` hides all."""
    env: dict[str, str] = field(default_factory=dict)

    def apply(self) -> None:
        # Where Ray cleans up after killed workers it makes them ignore SIGCHLD. Then every child seems to
        # exit with 0: a failed compilation, a rejected proof. Processes started from here inherit this too.
        # (Through libc, for Python's own call works in the main thread only; an async actor is made in another.)
        libc = ctypes.CDLL(None)
        libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
        libc.signal(signal.SIGCHLD, None)  # SIG_DFL
        os.chdir(self.cwd)
        sys.stdout.flush()
        sys.stderr.flush()
        descriptor = os.open(self.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
        os.environ.update(self.env)
        os.environ["OMP_NUM_THREADS"] = str(self.threads)
        if self.devices is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(self.devices)


@ray.remote(concurrency_groups={"control": 4}, max_restarts=0)  # type: ignore[call-overload]
class RolloutActor:
    """One engine and its episodes. ``ping`` and ``status`` answer while it generates."""

    def __init__(self, setup: ProcessSetup, config: Config, index: int) -> None:
        setup.apply()
        from rl.rollout.worker import RolloutWorker

        self.worker = RolloutWorker(config, index=index)

    async def start(self) -> None:
        await self.worker.start()

    async def rollout(self, request: Request) -> list[Trajectory]:
        return await self.worker.rollout(request)

    async def score(self, rows: Sequence[Sequence[int]], temperature: float) -> list[Any]:
        return await self.worker.score(rows, temperature)

    async def begin_update(self, manifest: WeightManifest) -> None:
        await self.worker.engine.begin_update(manifest)

    async def receive_weights(self, manifest: WeightManifest) -> None:
        await self.worker.engine.receive_weights(manifest)

    async def commit_update(self, manifest: WeightManifest) -> None:
        await self.worker.engine.commit_update(manifest)

    async def abort_update(self, manifest: WeightManifest) -> None:
        await self.worker.engine.abort_update(manifest)

    async def pause(self) -> None:
        await self.worker.engine.pause()

    async def resume(self) -> None:
        await self.worker.engine.resume()

    async def sleep(self) -> None:
        await self.worker.engine.sleep()

    async def wake(self) -> None:
        await self.worker.engine.wake()

    async def stop(self) -> None:
        await self.worker.stop()

    @ray.method(concurrency_group="control")
    async def abort(self, request_ids: Sequence[str] | None = None) -> None:
        await self.worker.engine.abort(request_ids)

    @ray.method(concurrency_group="control")
    async def ping(self) -> int:
        return os.getpid()

    @ray.method(concurrency_group="control")
    async def status(self) -> dict[str, Any]:
        return self.worker.status()


@ray.remote(concurrency_groups={"control": 2, "files": 1}, max_restarts=0)  # type: ignore[call-overload]
class TrainerActor:
    """One DeepSpeed rank."""

    def __init__(self, setup: ProcessSetup, config: Config, rank: int, world_size: int, run_id: str) -> None:
        setup.apply()
        self.config, self.number, self.world_size, self.run_id = config, rank, world_size, run_id
        self.rank: Any = None
        self.sender: Any = None
        self.store: Any = None

    def address(self) -> tuple[str, int]:
        """Host and port where the ranks meet; asked of rank 0, which holds the port from now on."""
        from rl.meeting import open_store

        host = "127.0.0.1" if self.config.ray.address is None else ray.util.get_node_ip_address()
        self.store = open_store(host, self.world_size)
        return host, self.store.port

    def gpu_ids(self) -> list[str]:
        return [str(i) for i in ray.get_gpu_ids()]

    def start(self, host: str, port: int) -> None:
        from rl.meeting import join_store
        from rl.objectives import build
        from rl.sync import create_sender
        from rl.training.rank import TrainerRank

        objective = build(self.config.algorithm, max_response_tokens=self.config.rollout.max_response_tokens)
        self.rank = TrainerRank(
            self.config,
            rank=self.number,
            world_size=self.world_size,
            store=self.store if self.store is not None else join_store(host, port, self.world_size),
            objective=objective,
        )
        self.rank.start()
        self.sender = create_sender(
            self.config, run_id=self.run_id, rank=self.number, host=host, gpus=self.rank.device.type == "cuda"
        )

    def train(self, batch: StepBatch) -> StepResult:
        return self.rank.train(batch)

    def logprobs(self, rows: Sequence[Sequence[int]], temperature: float) -> list[Any]:
        return self.rank.logprobs(rows, temperature)

    def begin_publish(self, version: PolicyVersion) -> WeightManifest:
        return self.sender.begin(version, self.rank.weights_meta())

    def send(self) -> None:
        self.sender.send(self.rank.weights())

    def commit_publish(self) -> None:
        self.sender.commit()

    def abort_publish(self) -> None:
        self.sender.abort()

    def perturb(self, seed: int) -> None:
        self.rank.perturb(seed)

    def restore(self) -> None:
        self.rank.restore()

    def save(self, folder: str) -> None:
        self.rank.save(folder)

    @ray.method(concurrency_group="files")
    def written(self) -> None:
        self.rank.written()

    def load(self, folder: str) -> None:
        self.rank.load(folder)

    def reset(self) -> None:
        self.rank.reset()

    def stop(self) -> None:
        if self.sender is not None:
            self.sender.close()
        if self.rank is not None:
            self.rank.stop()

    @ray.method(concurrency_group="control")
    def ping(self) -> int:
        return os.getpid()

    @ray.method(concurrency_group="control")
    def status(self) -> dict[str, Any]:
        return self.rank.status() if self.rank is not None else {"phase": "starting"}
