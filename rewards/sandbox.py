"""Runs hostile programs: limits on time, memory, processes, files, output and network, and nothing left behind.

What the operating system offers is found once (`level`):

* ``namespaces``: own network (none), process and mount view through ``unshare``; all dies with the first process;
* ``user``: as root, programs run as the user ``nobody`` (at the level above, too: root itself is not bound by limits on
  processes), provided that a Python is where ``nobody`` can read it;
* ``limits``: resource limits only.

Programs get an empty private folder, a clean environment, and no file descriptor but their own three. Never
put a secret or a gold answer where a program could read it: give tests on stdin, one at a time.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import os
import secrets
import selectors
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

Level = Literal["limits", "user", "namespaces"]
LEVELS: tuple[Level, ...] = ("limits", "user", "namespaces")
NOBODY = 65534
_MARK = "HONE_SANDBOX"
PATH = "/usr/local/bin:/usr/bin:/bin"
_UNSHARE = (
    *("unshare", "--user", "--map-root-user", "--net", "--ipc", "--uts"),
    *("--pid", "--fork", "--kill-child", "--mount-proc"),
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one program, its children included where a process is not named."""

    seconds: float = 10.0
    """Wall-clock; CPU time of a process has the same limit, rounded up."""
    memory_mb: int = 512
    """Address space of a process."""
    processes: int = 32
    files: int = 64
    """Open files of a process."""
    file_mb: int = 16
    """Largest file that may be written."""
    output_bytes: int = 1_000_000
    """Of stdout and of stderr; the program is killed when it writes more."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a program."""

    verdict: Literal["ended", "timeout", "output"]
    code: int
    """Exit status; negative: the signal that ended it."""
    stdout: str
    stderr: str
    seconds: float
    files: Mapping[str, bytes] = field(default_factory=dict)
    """What was asked to be kept of the program's folder."""

    @property
    def succeeded(self) -> bool:
        return self.verdict == "ended" and self.code == 0


class SandboxError(RuntimeError):
    """The sandbox itself failed, or the machine offers less isolation than was asked for."""


@functools.cache
def level() -> Level:
    """The strongest isolation that this machine allows, tried once."""
    if sys.platform != "linux":
        raise SandboxError("the sandbox needs Linux; score elsewhere, or use a remote backend")
    if shutil.which("unshare"):
        tried = subprocess.run([*_UNSHARE, "true"], capture_output=True, timeout=20, check=False, **_identity())
        if tried.returncode == 0:
            return "namespaces"
    return "user" if _identity() else "limits"


@functools.cache
def interpreter() -> str:
    """The Python that programs run with: this one, or as root one that another user can reach."""
    candidates = [os.path.realpath(sys.executable), shutil.which("python3", path=PATH)]
    if os.geteuid() == 0:
        return next((path for path in candidates if path and _reachable(Path(path))), sys.executable)
    return sys.executable


def _reachable(path: Path) -> bool:
    """Whether every other user may run the file."""
    return all(part.stat().st_mode & 0o001 for part in (path, *path.parents)) and bool(path.stat().st_mode & 0o004)


def _identity() -> dict[str, Any]:
    """Who programs run as: as root ``nobody``, where that user reaches the interpreter."""
    if os.geteuid() == 0 and _reachable(Path(os.path.realpath(interpreter()))):
        return {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    return {}


def run(
    command: Sequence[str],
    *,
    stdin: str = "",
    files: Mapping[str, str | bytes] | None = None,
    limits: Limits | None = None,
    at_least: Level = "limits",
    keep: Sequence[str] = (),
) -> Outcome:
    """Runs a command to its end or to a limit.

    Args:
        command: program and arguments; a bare ``python`` is this interpreter, isolated from its packages.
        files: names and contents of files in the program's folder; bytes may be run.
        at_least: refuse to run with less isolation.
        keep: patterns of names of files right in the folder whose contents come back; 200 files at most.

    Raises:
        SandboxError: the machine isolates less than ``at_least``, or the program cannot be started.
    """
    limits = limits or Limits()
    if LEVELS.index(level()) < LEVELS.index(at_least):
        raise SandboxError(f"this machine isolates by {level()!r} only, and {at_least!r} is asked for")
    argv = [interpreter(), "-I", "-S", "-B", *command[1:]] if command[0] == "python" else list(command)
    mark = secrets.token_hex(12)
    folder = Path(tempfile.mkdtemp(prefix="hone-sandbox-"))
    try:
        for name, content in (files or {}).items():
            path = folder / Path(name).name
            raw = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
            path.write_bytes(raw)
            path.chmod(0o755 if isinstance(content, bytes) else 0o644)
        if _identity():
            os.chown(folder, NOBODY, NOBODY)
        outcome = _run(argv, stdin, folder, limits, mark)
        return replace(outcome, files=_kept(folder, keep, limits.file_mb << 20)) if keep else outcome
    finally:
        _kill_marked(mark)
        shutil.rmtree(folder, ignore_errors=True)


def python(code: str, *, stdin: str = "", limits: Limits | None = None, at_least: Level = "limits") -> Outcome:
    """Runs Python code; see `run`."""
    return run(["python", "main.py"], stdin=stdin, files={"main.py": code}, limits=limits, at_least=at_least)


_LAUNCHER = """
import os, resource, sys
seconds, memory, processes, files, size = map(int, sys.argv[1:6])
wanted = dict(CPU=seconds, AS=memory, NOFILE=files, FSIZE=size, CORE=0, NPROC=processes)
for kind, value in wanted.items():
    limit = getattr(resource, "RLIMIT_" + kind)
    hard = resource.getrlimit(limit)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (value, value))
os.umask(0o077)
try:
    os.execvp(sys.argv[6], sys.argv[6:])
except OSError as error:
    sys.exit(f"{sys.argv[6]}: {error}")
"""


def _run(argv: list[str], stdin: str, folder: Path, limits: Limits, mark: str) -> Outcome:
    numbers = [int(limits.seconds) + 1, limits.memory_mb << 20, limits.processes, limits.files]
    numbers.append(limits.file_mb << 20)
    inner = [interpreter(), "-I", "-S", "-c", _LAUNCHER, *map(str, numbers), *argv]
    prefix = list(_UNSHARE) if level() == "namespaces" else []
    home = str(folder)
    environment = {"PATH": PATH, "HOME": home, "TMPDIR": home, "LANG": "C.UTF-8"}
    began = time.monotonic()
    try:
        process = subprocess.Popen(
            [*prefix, *inner],
            cwd=folder,
            env=environment | {_MARK: mark},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            close_fds=True,
            **_identity(),
        )
    except OSError as error:
        raise SandboxError(f"{argv[0]} cannot be started: {error}") from error
    try:
        verdict, out, err = _talk(process, stdin.encode("utf-8", "surrogateescape"), limits)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
    seconds = time.monotonic() - began
    text, errors = (part.decode("utf-8", "replace") for part in (out, err))
    return Outcome(verdict, process.returncode, text, errors, seconds)


def _talk(
    process: subprocess.Popen[bytes], stdin: bytes, limits: Limits
) -> tuple[Literal["ended", "timeout", "output"], bytes, bytes]:
    """Feeds and reads the program until it ends or breaks a limit; pipes that children hold open do not count."""
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    deadline = time.monotonic() + limits.seconds
    outputs = {process.stdout: bytearray(), process.stderr: bytearray()}
    with selectors.DefaultSelector() as selector:
        for pipe in (process.stdin, process.stdout, process.stderr):
            os.set_blocking(pipe.fileno(), False)
        for pipe in outputs:
            selector.register(pipe, selectors.EVENT_READ)
        rest = memoryview(stdin)
        if rest:
            selector.register(process.stdin, selectors.EVENT_WRITE)
        else:
            process.stdin.close()
        while True:
            ended = process.poll() is not None
            left = deadline - time.monotonic()
            if left <= 0:
                return "timeout", bytes(outputs[process.stdout]), bytes(outputs[process.stderr])
            ready = selector.select(0 if ended else min(left, 0.05)) if selector.get_map() else []
            if not selector.get_map() and not ended:
                time.sleep(0.002)
            for key, _ in ready:
                if key.fileobj is process.stdin:
                    try:
                        rest = rest[os.write(key.fd, rest[:65536]) :]
                    except BrokenPipeError:
                        rest = rest[:0]
                    if not rest:
                        selector.unregister(process.stdin)
                        process.stdin.close()
                    continue
                chunk = os.read(key.fd, 65536)
                buffer = outputs[key.fileobj]  # type: ignore[index]
                buffer += chunk
                if not chunk:
                    selector.unregister(key.fileobj)
                if len(buffer) > limits.output_bytes:
                    del buffer[limits.output_bytes :]
                    return "output", bytes(outputs[process.stdout]), bytes(outputs[process.stderr])
            if ended and not any(key.fileobj is not process.stdin for key, _ in ready):
                return "ended", bytes(outputs[process.stdout]), bytes(outputs[process.stderr])


def _kept(folder: Path, patterns: Sequence[str], most: int) -> dict[str, bytes]:
    """Contents of regular files of the folder itself: a link that a program left is not followed."""
    names = sorted(name for name in os.listdir(folder) if any(fnmatch.fnmatchcase(name, part) for part in patterns))
    found = {}
    for name in names[:200]:
        with contextlib.suppress(OSError):
            descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(descriptor, "rb") as file:
                if stat.S_ISREG(os.fstat(descriptor).st_mode):
                    found[name] = file.read(most)
    return found


def _kill_marked(mark: str) -> None:
    """Processes that left the group but carry the mark in their environment."""
    wanted = f"{_MARK}={mark}".encode()
    for _ in range(5):
        found = False
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
                    found = True
        if not found:
            return
        time.sleep(0.01)
