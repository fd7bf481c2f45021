"""Runs in the background, their processes known by a mark, and ways to end them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import uuid
from pathlib import Path

from tests.stack.runs import command, environment, metrics


def marked(mark: str) -> list[tuple[int, str]]:
    """Processes that inherited the mark in their environment, zombies left out."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append((int(folder.name), (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:120]))
        except OSError:
            continue
    return found


def wait_for_none(mark: str, seconds: float = 90) -> list[tuple[int, str]]:
    end = time.monotonic() + seconds
    while (left := marked(mark)) and time.monotonic() < end:
        time.sleep(0.5)
    return left


class Started:
    """A run in the background, with a mark that all its processes carry."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        """``arguments`` of the command, the verb first."""
        self.mark = f"hone-{uuid.uuid4().hex}"
        self.run = folder / "runs" / "tiny"
        self.log = folder / "log.txt"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command(*arguments),
                cwd=folder,
                env=environment() | {"HONE_TEST_MARK": self.mark},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # Under a shell that runs things in the background SIGINT is ignored, and that is inherited.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    def wait_for_step(self, step: int, seconds: float = 300) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            if (self.run / "metrics.jsonl").exists() and any(r["step"] >= step for r in metrics(self.run)):
                return
            time.sleep(0.2)
        raise AssertionError(f"step {step} did not come: {self.log.read_text()[-3000:]}")

    def worker(self, name: str) -> int:
        """Process id of the actor whose log file is ``name``."""
        for pid, _ in marked(self.mark):
            try:
                if os.readlink(f"/proc/{pid}/fd/1").endswith(f"{name}.log"):
                    parent = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
                    if "raylet" in Path(f"/proc/{parent}/comm").read_text():
                        return pid
            except OSError:
                continue
        raise AssertionError(f"no process writes {name}.log")

    def kill(self) -> None:
        """SIGKILL for every process of the run at once, as when a machine loses power."""
        for pid, _ in marked(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def end(self, seconds: float = 240) -> str:
        self.process.wait(timeout=seconds)
        return self.log.read_text()
