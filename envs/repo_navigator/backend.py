"""What finds definitions: the protocol, processes that can be killed, and the cache over them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

import psutil

from envs.repo_navigator.snapshot import Snapshot

_AFFINITY_WINDOW = 8
"""How many waiting questions a worker looks through for one about the repository it has loaded."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a name is defined."""

    path: str
    """Relative to the snapshot; empty when the definition is outside it."""
    line: int
    """Of the name; 0 outside."""
    name: str
    full_name: str
    kind: str
    """`function`, `class`, `module`, `statement`, `param`, ..."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Targets of one position, or why there are none."""

    targets: tuple[Target, ...] = ()
    error: str | None = None
    """`timeout`, or the name of the resolver's own exception."""


class DefinitionBackend(Protocol):
    """Resolves names to definitions. Safe to call from many episodes at once."""

    engine: str
    """Name and version: part of every cache key."""

    async def resolve(
        self, snapshot: Snapshot, path: str, text: str, positions: Sequence[tuple[int, int]], *, timeout_s: float
    ) -> list[Answer]:
        """One answer a position (1-based line, 0-based column in characters); never raises for what code contains."""
        ...

    def metrics(self) -> dict[str, float]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Question:
    """Names of one file of one snapshot."""

    root: str
    import_roots: tuple[str, ...]
    """Relative to `root`, the root itself as an empty string."""
    path: str
    """Absolute."""
    text: str
    positions: tuple[tuple[int, int], ...]
    timeout_s: float
    future: Future[list[Answer]] = field(default_factory=Future)


class Resolver(Protocol):
    """One process that answers questions, one at a time."""

    def serves(self, root: str) -> bool:
        """Whether it can answer for this snapshot without being started again."""
        ...

    def ask(self, question: Question) -> tuple[list[Answer], bool]:
        """The answers, and whether the process may serve on."""
        ...

    def memory_mb(self) -> float: ...

    def kill(self) -> None: ...


class ProcessBackend:
    """Resolvers in processes of their own, one question at a time in each; usable from any event loop.

    Threads inside one resolver give wrong answers, and a stuck one can only be killed: it goes with
    its helpers and is replaced.

    Args:
        engine: name and version.
        start: makes the process for a question.
        workers: processes; questions beyond them wait in order.
        recycle_queries: answers after which a process is replaced: resolvers grow.
        recycle_mb: resident memory after which it is replaced.
    """

    def __init__(
        self,
        engine: str,
        start: Callable[[Question], Resolver],
        *,
        workers: int = 2,
        recycle_queries: int = 300,
        recycle_mb: int = 512,
    ) -> None:
        self.engine = engine
        self._start = start
        self._recycle = (recycle_queries, recycle_mb)
        self._waiting: deque[Question] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._counts = {"queries": 0, "restarts": 0, "timeouts": 0, "recycled": 0}
        self._resolvers: set[Resolver] = set()
        self._threads = [
            threading.Thread(target=self._serve, daemon=True, name=f"{engine}-{i}") for i in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    async def resolve(
        self, snapshot: Snapshot, path: str, text: str, positions: Sequence[tuple[int, int]], *, timeout_s: float
    ) -> list[Answer]:
        return await asyncio.wrap_future(self.submit(snapshot, path, text, positions, timeout_s=timeout_s))

    def submit(
        self, snapshot: Snapshot, path: str, text: str, positions: Sequence[tuple[int, int]], *, timeout_s: float
    ) -> Future[list[Answer]]:
        """`resolve` for callers without an event loop."""
        root = str(snapshot.root)
        question = Question(root, snapshot.source_roots, os.path.join(root, path), text, tuple(positions), timeout_s)
        with self._changed:
            if self._closed:
                raise RuntimeError("the resolver is closed")
            self._waiting.append(question)
            self._changed.notify()
        return question.future

    def metrics(self) -> dict[str, float]:
        """Totals since the start, and the queue now."""
        return {**{k: float(v) for k, v in self._counts.items()}, "queue": float(len(self._waiting))}

    def memory_mb(self) -> float:
        """Resident memory of the processes and their helpers."""
        return sum(r.memory_mb() for r in list(self._resolvers))

    def close(self) -> None:
        """Kills the processes; waiting questions fail. Idempotent."""
        with self._changed:
            self._closed = True
            waiting, self._waiting = list(self._waiting), deque()
            self._changed.notify_all()
        for question in waiting:
            question.future.cancel()
        for resolver in list(self._resolvers):
            resolver.kill()
        for thread in self._threads:
            thread.join(timeout=5)

    def _serve(self) -> None:
        """One thread owns one process."""
        resolver: Resolver | None = None
        served, root = 0, ""
        while (question := self._next(root)) is not None:
            if not question.future.set_running_or_notify_cancel():
                continue
            root = question.root
            if resolver is not None and not resolver.serves(root):
                self._stop(resolver)
                resolver = None
            try:
                if resolver is None:
                    resolver, served = self._start(question), 0
                    self._resolvers.add(resolver)
                answers, healthy = resolver.ask(question)
            except Exception as error:  # it cannot be started, or does not speak its protocol
                question.future.set_exception(error)
                answers, healthy = [], False
            served += 1
            self._counts["queries"] += 1
            if not healthy:
                late = any(a.error == "timeout" for a in answers)
                self._counts["timeouts" if late else "restarts"] += 1
            elif served >= self._recycle[0] or (resolver and resolver.memory_mb() > self._recycle[1]):
                self._counts["recycled"] += 1
                healthy = False
            if not healthy and resolver is not None:
                self._stop(resolver)
                resolver = None
            if not question.future.done():
                question.future.set_result(answers)
        if resolver is not None:
            self._stop(resolver)

    def _next(self, root: str) -> Question | None:
        """The oldest question, or one of the next few about the repository that is loaded."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            for i, question in enumerate(list(self._waiting)[:_AFFINITY_WINDOW]):
                if question.root == root:
                    del self._waiting[i]
                    return question
            return self._waiting.popleft()

    def _stop(self, resolver: Resolver) -> None:
        resolver.kill()
        self._resolvers.discard(resolver)


class Pipes:
    """A child process and its pipes, written and read with deadlines.

    It has a session of its own: its helpers die with it.
    """

    def __init__(self, command: Sequence[str], *, cwd: str = "/", env: Mapping[str, str] | None = None) -> None:
        self._popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=cwd,
            env=None if env is None else dict(env),
            start_new_session=True,
            bufsize=0,
        )
        self.pid = self._popen.pid
        self._family: list[psutil.Process] = []
        self._buffer = b""
        assert self._popen.stdin is not None and self._popen.stdout is not None
        self._in, self._out = self._popen.stdin.fileno(), self._popen.stdout.fileno()
        os.set_blocking(self._in, False)

    @property
    def failure(self) -> str:
        """The error of an answer that did not come."""
        return "timeout" if self._popen.poll() is None else "crash"

    def write(self, data: bytes, deadline: float) -> bool:
        """Whether all of it went. Reads meanwhile: a process that waits to be read from does not read."""
        left = memoryview(data)
        with selectors.DefaultSelector() as selector:
            selector.register(self._in, selectors.EVENT_WRITE)
            selector.register(self._out, selectors.EVENT_READ)
            while left:
                seconds = deadline - time.monotonic()
                ready = selector.select(seconds) if seconds > 0 else []
                if not ready:
                    return False
                try:
                    if any(key.fd == self._out for key, _ in ready) and not self._fill():
                        return False
                    if any(key.fd == self._in for key, _ in ready):
                        left = left[os.write(self._in, left) :]
                except BlockingIOError:
                    continue
                except OSError:  # it died since its last answer
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self._popen.wait(1)
                    return False
        return True

    def read_line(self, deadline: float) -> bytes | None:
        """The next line without its end; `None` at the deadline or when the process has ended."""
        while b"\n" not in self._buffer:
            if not self._wait(deadline):
                return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def read(self, size: int, deadline: float) -> bytes | None:
        """Exactly `size` bytes, or `None`."""
        while len(self._buffer) < size:
            if not self._wait(deadline):
                return None
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    def memory_mb(self) -> float:
        """Resident memory of the process and the helpers that it started first."""
        with contextlib.suppress(psutil.Error):
            if len(self._family) < 2:  # helpers come with the first question
                process = psutil.Process(self.pid)
                self._family = [process, *process.children(recursive=True)]
            return float(sum(p.memory_info().rss for p in self._family)) / 2**20
        return 0.0

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait()
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                pipe.close()

    def _wait(self, deadline: float) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self._out, selectors.EVENT_READ)
            left = deadline - time.monotonic()
            return left > 0 and bool(selector.select(left)) and self._fill()

    def _fill(self) -> bool:
        chunk = os.read(self._out, 65_536)
        if not chunk:
            self._popen.wait()
        self._buffer += chunk
        return bool(chunk)


class CachedBackend:
    """Answers kept in memory and, when a folder is given, on disk by snapshot, engine and position.

    Eight episodes of a group ask the same questions: all but the first cost microseconds. Timeouts
    and crashes are not kept. A damaged file is ignored and written anew.
    """

    def __init__(self, inner: DefinitionBackend, folder: Path | None = None) -> None:
        self.inner = inner
        self.engine = inner.engine
        self._folder = folder
        self._known: dict[tuple[str, str, int, int], Answer] = {}
        self._hits = 0
        self._misses = 0

    async def resolve(
        self, snapshot: Snapshot, path: str, text: str, positions: Sequence[tuple[int, int]], *, timeout_s: float
    ) -> list[Answer]:
        keys = [(snapshot.snapshot_id, path, *p) for p in positions]
        missing = [p for k, p in zip(keys, positions, strict=True) if k not in self._known]
        if missing and self._folder is not None:
            self._load(snapshot, path)
            missing = [p for k, p in zip(keys, positions, strict=True) if k not in self._known]
        self._hits += len(positions) - len(missing)
        self._misses += len(missing)
        fresh: dict[tuple[int, int], Answer] = {}
        if missing:
            found = await self.inner.resolve(snapshot, path, text, missing, timeout_s=timeout_s)
            fresh = dict(zip(missing, found, strict=True))
            kept = {p: a for p, a in fresh.items() if a.error not in ("timeout", "crash")}
            self._known.update({(snapshot.snapshot_id, path, *p): a for p, a in kept.items()})
            if self._folder is not None and kept:
                self._save(snapshot, path)
        return [self._known.get(k) or fresh[p] for k, p in zip(keys, positions, strict=True)]

    def metrics(self) -> dict[str, float]:
        return {**self.inner.metrics(), "cache_hits": float(self._hits), "cache_misses": float(self._misses)}

    def close(self) -> None:
        self.inner.close()

    def _file(self, snapshot: Snapshot, path: str) -> Path:
        assert self._folder is not None
        return self._folder / snapshot.snapshot_id / self.engine / (path.replace("/", "%") + ".json")

    def _load(self, snapshot: Snapshot, path: str) -> None:
        try:
            rows = json.loads(self._file(snapshot, path).read_text())
            for line, column, targets, error in rows:
                answer = Answer(tuple(Target(**t) for t in targets), error)
                self._known.setdefault((snapshot.snapshot_id, path, int(line), int(column)), answer)
        except (OSError, ValueError, TypeError):  # absent or damaged: ask again
            return

    def _save(self, snapshot: Snapshot, path: str) -> None:
        file = self._file(snapshot, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        rows = [
            (k[2], k[3], [asdict(t) for t in a.targets], a.error)
            for k, a in self._known.items()
            if k[:2] == (snapshot.snapshot_id, path)
        ]
        handle, aside = tempfile.mkstemp(dir=file.parent)
        with os.fdopen(handle, "w") as out:
            json.dump(rows, out)
        os.replace(aside, file)
