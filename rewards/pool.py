"""Processes that score, killed and replaced when a call passes its deadline.

Plain processes, so that it works in a notebook as in a run. Calls block: run them in threads.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import queue
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rewards.contract import RewardError, RewardUnavailable
from rewards.worker import HEADER, write_frame
from rl.types import Task, Trajectory

IMPORT_SECONDS = 120.0
CALLS = 2000
"""A process is replaced after this many calls: what rewards leak goes with it."""


class DeadlinePassed(Exception):
    """The call took too long, or too much memory; its process is gone."""


class WorkerLost(Exception):
    """The process died under the call."""


class _Worker:
    """One process, started at its first call."""

    def __init__(self, memory_mb: int) -> None:
        self._memory_mb = memory_mb
        self._process: subprocess.Popen[bytes] | None = None
        self._calls = 0
        self._loaded: set[tuple[str, Path]] = set()

    def call(self, spec: str, base_dir: Path, rest: tuple[Any, ...], seconds: float) -> dict[str, Any]:
        """Answer to one request. Imports, at the first call of a reward, are not its time."""
        self._ensure()
        if (spec, base_dir) not in self._loaded:
            answer = self._ask(pickle.dumps((spec, str(base_dir), {}, [], [])), IMPORT_SECONDS)
            if "scores" not in answer:
                return answer
            self._loaded.add((spec, base_dir))
        self._calls += 1
        return self._ask(pickle.dumps((spec, str(base_dir), *rest)), seconds)

    def _ensure(self) -> None:
        if self._process is None or self._process.poll() is not None or self._calls >= CALLS:
            self.kill()
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "rewards.worker", str(self._memory_mb)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # what a reward starts is killed with it, and Ctrl-C is the run's to handle
            )
            self._calls = 0
            self._loaded.clear()

    def _ask(self, request: bytes, seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        assert self._process is not None and self._process.stdin is not None
        try:
            write_frame(self._process.stdin, request)  # type: ignore[arg-type]
            (size,) = HEADER.unpack(self._read(HEADER.size, deadline))
            return json.loads(self._read(size, deadline))
        except (BrokenPipeError, WorkerLost) as error:
            self.kill()
            raise WorkerLost("a scoring process died") from error
        except DeadlinePassed:
            self.kill()
            raise

    def _read(self, count: int, deadline: float) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        descriptor, parts = self._process.stdout.fileno(), bytearray()
        while len(parts) < count:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise DeadlinePassed
            chunk = os.read(descriptor, count - len(parts))
            if not chunk:
                raise WorkerLost
            parts += chunk
        return bytes(parts)

    def kill(self) -> None:
        """Ends the process and all that it started. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, 9)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]


class ScoringPool:
    """``workers`` processes; a call waits for a free one.

    Args:
        memory_mb: address space of a process; 0 is no limit.
    """

    def __init__(self, workers: int, *, memory_mb: int = 0) -> None:
        self._all = [_Worker(memory_mb) for _ in range(workers)]
        self._free: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in self._all:
            self._free.put(worker)

    def score(
        self,
        spec: str,
        base_dir: Path,
        options: Mapping[str, Any],
        task: Task,
        members: Sequence[Trajectory],
        seconds: float,
    ) -> list[float | None]:
        """Scores of ``members`` by the reward ``spec``. Blocks.

        Raises:
            DeadlinePassed: after ``seconds``, or at the memory limit.
            WorkerLost: the process died.
            RewardUnavailable: the reward said so.
            RewardError: the reward raised, or answered with something else than scores.
        """
        rest = (dict(options), [task] * len(members), list(members))
        worker = self._free.get()
        try:
            answer = worker.call(spec, base_dir, rest, seconds)
        finally:
            self._free.put(worker)
        if "scores" in answer:
            return answer["scores"]
        if "memory" in answer:
            raise DeadlinePassed
        if "unavailable" in answer:
            raise RewardUnavailable(answer["unavailable"])
        raise RewardError(answer["error"])

    def close(self) -> None:
        """Kills every process."""
        for worker in self._all:
            worker.kill()
