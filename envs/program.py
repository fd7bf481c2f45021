"""Agents that own their loop: unmodified programs that talk to an OpenAI-compatible endpoint.

The run gives each episode an endpoint of its own (`rl.rollout.gateway`), which records the tokens of
every call. The program only says how well it did.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from rl.types import Task


@runtime_checkable
class Program(Protocol):
    """One episode."""

    async def run(self, task: Task, *, base_url: str, seed: int, deadline: float) -> Mapping[str, float]:
        """Plays the episode against `base_url` (model name `policy`) and returns named rewards.

        `deadline` is a `time.monotonic()` at which the run cancels it.
        """
        ...

    async def close(self) -> None:
        """Frees everything; called exactly once, whatever happened."""
        ...


def is_program(made: Any) -> bool:
    """Whether it owns its loop (`run`) instead of taking turns (`reset`, `step`)."""
    return hasattr(made, "run") and not hasattr(made, "step")


class CommandProgram:
    """A program started as a command, for agents and frameworks of any kind.

    It finds the endpoint in `OPENAI_BASE_URL` (with `OPENAI_API_KEY` set to a word without meaning),
    the task as JSON on standard input and the seed in `HONE_SEED`; the last line of its standard
    output is a JSON object of rewards. It runs in an empty folder and gets no other variable of this
    process but `PATH`, `HOME` and those in `pass_env`; it is killed with its children at the deadline.

    Args:
        command: program and arguments; those that name a file here are given as absolute paths.
        pass_env: further variables it gets.
    """

    def __init__(self, command: Sequence[str], *, pass_env: Sequence[str] = ()) -> None:
        if isinstance(command, str) or not command:
            raise ValueError("command is a list, for example [python, agent.py]")
        self._command = [str(Path(part).resolve()) if Path(part).is_file() else part for part in command]
        self._pass_env = list(pass_env)
        self._process: asyncio.subprocess.Process | None = None

    async def run(self, task: Task, *, base_url: str, seed: int, deadline: float) -> Mapping[str, float]:
        env = {k: os.environ[k] for k in ("PATH", "HOME", *self._pass_env) if k in os.environ}
        env |= {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": "hone", "HONE_SEED": str(seed)}
        given = {"task_id": task.task_id, "messages": list(task.messages), **task.columns}
        with tempfile.TemporaryDirectory(prefix="hone-program-") as folder:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=folder,
                env=env,
                start_new_session=True,
            )
            try:
                out, err = await self._process.communicate(json.dumps(given, default=str).encode())
            finally:
                await self.close()
        if self._process.returncode:
            last = err.decode(errors="replace").strip()[-500:]
            raise RuntimeError(f"{Path(self._command[0]).name} ended with {self._process.returncode}: {last}")
        return read_rewards(out.decode(errors="replace"))

    async def close(self) -> None:
        """Kills the program and its children."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):  # it may have been reaped, and not told to us yet
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def read_rewards(output: str) -> dict[str, float]:
    """Rewards from the last line of a program's output.

    Raises:
        ValueError: it is no JSON object of finite numbers.
    """
    lines = [line for line in output.splitlines() if line.strip()]
    try:
        value = json.loads(lines[-1]) if lines else None
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"the program's last line must be a JSON object of rewards, not {lines[-1:]}")
    for name, number in value.items():
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
            raise ValueError(f"reward {name!r} is {number!r}; rewards are finite numbers")
    return {str(k): float(v) for k, v in value.items()}
