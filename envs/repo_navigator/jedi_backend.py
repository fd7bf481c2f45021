"""jedi in worker processes: the default resolver."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from envs.repo_navigator.backend import Answer, Pipes, ProcessBackend, Question, Target

_WORKER = Path(__file__).with_name("jedi_worker.py")


def jedi_backend(
    workers: int = 2, *, memory_mb: int = 2048, cache_dir: Path | None = None, command: Sequence[str] | None = None
) -> ProcessBackend:
    """jedi in `workers` processes.

    Args:
        memory_mb: address space that a process may take at all.
        cache_dir: of jedi's parser cache; one of this user when not given.
        command: what to start instead of the jedi worker, for tests.

    Raises:
        ModuleNotFoundError: jedi is not installed.
    """
    if command is not None:
        chosen = list(command)
        return ProcessBackend("custom", lambda question: _JediProcess(chosen), workers=workers)
    if importlib.util.find_spec("jedi") is None:
        raise ModuleNotFoundError("RepoNavigator needs jedi: pip install 'hone-rl[repo-navigator]'")
    folder = cache_dir or Path(tempfile.gettempdir()) / f"hone-jedi-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():  # its files are pickles: only our own may be loaded
        folder = Path(tempfile.mkdtemp(prefix="hone-jedi-"))
    started = [sys.executable, "-I", str(_WORKER), str(folder), str(memory_mb)]
    engine = f"jedi-{importlib.metadata.version('jedi')}"
    return ProcessBackend(engine, lambda question: _JediProcess(started), workers=workers)


class _JediProcess:
    """Questions and answers as JSON lines, see `jedi_worker`."""

    def __init__(self, command: Sequence[str]) -> None:
        self._pipes = Pipes(command)
        self.memory_mb = self._pipes.memory_mb
        self.kill = self._pipes.kill

    def serves(self, root: str) -> bool:
        return True

    def ask(self, question: Question) -> tuple[list[Answer], bool]:
        deadline = time.monotonic() + question.timeout_s
        asked = {
            "root": question.root,
            "import_roots": question.import_roots,
            "path": question.path,
            "text": question.text,
            "positions": question.positions,
        }
        answers: list[Answer] = []
        healthy = self._pipes.write(json.dumps(asked).encode() + b"\n", deadline)
        while healthy and len(answers) < len(question.positions):
            line = self._pipes.read_line(deadline)
            if line is None:
                healthy = False
            else:
                reply = json.loads(line)
                answers.append(Answer(tuple(Target(**t) for t in reply.get("targets", ())), reply.get("error")))
        missing = [Answer(error=self._pipes.failure)] * (len(question.positions) - len(answers))
        return answers + missing, healthy
