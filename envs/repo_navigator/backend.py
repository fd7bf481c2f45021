"""What finds definitions: the protocol, and jedi in worker processes that can be killed."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from envs.repo_navigator.snapshot import Snapshot

_WORKER = Path(__file__).with_name("jedi_worker.py")
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


@dataclass
class _Question:
    payload: dict[str, Any]
    timeout_s: float
    future: Future[list[Answer]] = field(default_factory=Future)


class JediBackend:
    """jedi in `workers` processes, one question at a time in each.

    Threads inside one process would give wrong answers; a stuck process is killed with its helper
    and replaced. Usable from any event loop.

    Args:
        workers: processes; questions beyond them wait in order.
        recycle_queries: answers after which a process is replaced: jedi's memory grows.
        recycle_mb: resident memory after which it is replaced.
        memory_mb: address space that a process may take at all.
        command: what to start instead of the jedi worker, for tests.
    """

    def __init__(
        self,
        workers: int = 2,
        *,
        recycle_queries: int = 300,
        recycle_mb: int = 512,
        memory_mb: int = 2048,
        cache_dir: Path | None = None,
        command: Sequence[str] | None = None,
    ) -> None:
        if command is None and importlib.util.find_spec("jedi") is None:
            raise ModuleNotFoundError("RepoNavigator needs jedi: pip install 'hone-rl[repo-navigator]'")
        self.engine = f"jedi-{importlib.metadata.version('jedi')}" if command is None else "custom"
        folder = cache_dir or Path(tempfile.gettempdir()) / f"hone-jedi-{os.getuid()}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.getuid():  # its files are pickles: only our own may be loaded
            folder = Path(tempfile.mkdtemp(prefix="hone-jedi-"))
        self._command = list(command or [sys.executable, "-I", str(_WORKER), str(folder), str(memory_mb)])
        self._recycle = (recycle_queries, recycle_mb)
        self._waiting: deque[_Question] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._counts = {"queries": 0, "restarts": 0, "timeouts": 0, "recycled": 0}
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._threads = [threading.Thread(target=self._serve, daemon=True, name=f"jedi-{i}") for i in range(workers)]
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
        payload = {
            "root": root,
            "import_roots": list(snapshot.source_roots),
            "path": os.path.join(root, path),
            "text": text,
            "positions": [list(p) for p in positions],
        }
        question = _Question(payload, timeout_s)
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
        """Resident memory of the worker processes."""
        return sum(_resident_mb(p.pid) for p in list(self._processes))

    def close(self) -> None:
        """Kills the processes; waiting questions fail. Idempotent."""
        with self._changed:
            self._closed = True
            waiting, self._waiting = list(self._waiting), deque()
            self._changed.notify_all()
        for question in waiting:
            question.future.cancel()
        for process in list(self._processes):
            _kill(process)
        for thread in self._threads:
            thread.join(timeout=5)

    def _serve(self) -> None:
        """One thread owns one process."""
        process: _Process | None = None
        root = ""
        while (question := self._next(root)) is not None:
            if not question.future.set_running_or_notify_cancel():
                continue
            root = question.payload["root"]
            if process is None:
                process = self._start()
            answers, healthy = process.ask(question.payload, question.timeout_s)
            self._counts["queries"] += 1
            if not healthy:
                late = any(a.error == "timeout" for a in answers)
                self._counts["timeouts" if late else "restarts"] += 1
                self._stop(process)
                process = None
            elif process.served >= self._recycle[0] or _resident_mb(process.pid) > self._recycle[1]:
                self._counts["recycled"] += 1
                self._stop(process)
                process = None
            question.future.set_result(answers)
        if process is not None:
            self._stop(process)

    def _next(self, root: str) -> _Question | None:
        """The oldest question, or one of the next few about the repository that is loaded."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            for i, question in enumerate(list(self._waiting)[:_AFFINITY_WINDOW]):
                if question.payload["root"] == root:
                    del self._waiting[i]
                    return question
            return self._waiting.popleft()

    def _start(self) -> _Process:
        process = _Process(self._command)
        self._processes.add(process.popen)
        return process

    def _stop(self, process: _Process) -> None:
        _kill(process.popen)
        self._processes.discard(process.popen)


class _Process:
    """A worker process and the bytes read from it so far."""

    def __init__(self, command: Sequence[str]) -> None:
        # A session of its own: jedi starts a helper, and both must go at once.
        self.popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
            bufsize=0,
        )
        self.pid = self.popen.pid
        self.served = 0
        self._buffer = b""

    def ask(self, payload: dict[str, Any], timeout_s: float) -> tuple[list[Answer], bool]:
        """The answers, and whether the process may serve on."""
        wanted = len(payload["positions"])
        answers: list[Answer] = []
        deadline = time.monotonic() + timeout_s
        assert self.popen.stdin is not None
        try:
            self.popen.stdin.write(json.dumps(payload).encode() + b"\n")
        except OSError:  # it died since its last answer
            return [Answer(error="crash")] * wanted, False
        while len(answers) < wanted:
            line = self._line(deadline)
            if line is None:
                error = "timeout" if self.popen.poll() is None else "crash"
                return answers + [Answer(error=error)] * (wanted - len(answers)), False
            reply = json.loads(line)
            answers.append(Answer(tuple(Target(**t) for t in reply.get("targets", ())), reply.get("error")))
        self.served += 1
        return answers, True

    def _line(self, deadline: float) -> bytes | None:
        """The next line; `None` at the deadline or when the process has ended."""
        assert self.popen.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.popen.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    return None
                chunk = os.read(self.popen.stdout.fileno(), 65_536)
                if not chunk:
                    self.popen.wait()
                    return None
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _resident_mb(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


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
