"""`runs/NAME/`: all that a run writes, and what is needed to tell later what it was.

One process owns the folder at a time. Layout: ``config.yaml`` (resolved), ``recipe.yaml`` (as given),
``versions.json``, ``command.json``, ``git.json``, ``git.patch``, ``files/``, ``state.json``,
``metrics.jsonl``, ``rollouts/``, ``plots/``, ``checkpoints/``, ``logs/``.
"""

from __future__ import annotations

import json
import secrets
import shutil
from pathlib import Path
from typing import Any

from rl.config import ConfigError, Resolved
from rl.tracking.jsonable import write_atomic
from rl.tracking.lock import RunLock
from rl.tracking.provenance import write_provenance

RECORDS = ("config.yaml", "versions.json", "git.json", "git.patch", "state.json")
"""Small files that say which run this is."""


class RunDirectory:
    """A run's folder. Make it with ``create`` or ``open``; ``close`` gives it free."""

    def __init__(self, path: Path, lock: RunLock | None) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def create(cls, resolved: Resolved, *, overwrite: bool = False) -> RunDirectory:
        """A fresh folder for a run, with its config and provenance in it.

        Raises:
            ConfigError: the folder exists and ``overwrite`` is off, is no run directory, or is in use.
        """
        name = resolved.config.name
        if Path(name).name != name or name in ("", ".", ".."):
            raise ConfigError(f"name: {name!r} must be a plain folder name; the place is `run_dir`")
        path = Path(resolved.config.run_dir).expanduser().resolve() / name
        if path.exists():
            _may_use(path, overwrite)
        path.mkdir(parents=True, exist_ok=True)
        lock = RunLock(path)
        try:
            _empty(path)
            run = cls(path, lock)
            run.checkpoints.mkdir()
            run.update_state(run_id=f"{name}-{secrets.token_hex(4)}")
            if resolved.recipe_path is not None:
                shutil.copyfile(resolved.recipe_path, path / "recipe.yaml")
            write_provenance(path, resolved.config)
            write_atomic(run.config_path, resolved.to_yaml())  # last: its presence marks a whole run directory
        except BaseException:
            lock.release()
            raise
        return run

    @classmethod
    def open(cls, path: str | Path, *, lock: bool = True) -> RunDirectory:
        """The folder of an earlier run.

        Args:
            lock: own it, to go on with the run; off for reading.

        Raises:
            ConfigError: no run directory there, or it is in use.
        """
        folder = Path(path).expanduser().resolve()
        if not (folder / "config.yaml").is_file():
            runs = sorted(p.parent.name for p in folder.parent.glob("*/config.yaml"))
            others = f"; runs next to it: {', '.join(runs)}" if runs else ""
            raise ConfigError(f"{folder} is no run directory: it has no config.yaml{others}")
        return cls(folder, RunLock(folder) if lock else None)

    def close(self) -> None:
        """Gives the folder free for other processes. Idempotent; the files stay readable."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def config_path(self) -> Path:
        return self.path / "config.yaml"

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def run_id(self) -> str:
        """Unique name of the run on this machine, the same after a resume."""
        return self.state()["run_id"]

    def state(self) -> dict[str, Any]:
        """Ids that outlive a process: the run's own and those of trackers."""
        path = self.path / "state.json"
        return json.loads(path.read_text()) if path.is_file() else {}

    def update_state(self, **values: Any) -> None:
        """Adds to ``state.json``."""
        write_atomic(self.path / "state.json", json.dumps(self.state() | values, indent=1) + "\n")

    def copy_records(self, folder: Path) -> None:
        """Copies what says which run this is into a checkpoint, which tells it without its run."""
        folder.mkdir()
        for name in RECORDS:
            if (self.path / name).is_file():
                shutil.copyfile(self.path / name, folder / name)

    def metrics(self) -> list[dict[str, Any]]:
        """All complete lines of ``metrics.jsonl``, in order."""
        rows = [_parse(text) for text in self._lines()]
        return [row for row in rows if row is not None]

    def trim_metrics(self, step: int) -> int:
        """Moves lines past ``step``, and a torn last line, to ``metrics.abandoned.jsonl``; returns how many."""
        kept: list[str] = []
        moved: list[str] = []
        for text in self._lines():
            row = _parse(text)
            (kept if row is not None and row["step"] <= step else moved).append(text)
        if moved:
            # Appended before the original shrinks: a crash in between repeats lines, but loses none.
            with open(self.path / "metrics.abandoned.jsonl", "a", encoding="utf-8") as file:
                file.writelines(text + "\n" for text in moved)
            write_atomic(self.metrics_path, "".join(text + "\n" for text in kept))
        return len(moved)

    def _lines(self) -> list[str]:
        if not self.metrics_path.is_file():
            return []
        text = self.metrics_path.read_text(encoding="utf-8", errors="replace")
        return [line for line in text.split("\n") if line]


def _parse(text: str) -> dict[str, Any] | None:
    try:
        row = json.loads(text)
    except json.JSONDecodeError:
        return None  # torn by a kill in the middle of a write
    return row if isinstance(row, dict) and "step" in row else None


def _may_use(path: Path, overwrite: bool) -> None:
    contents = {p.name for p in path.iterdir()} - {".lock", ".lock.guard"} if path.is_dir() else {""}
    if not contents:
        return
    run = path.is_dir() and ((path / "config.yaml").is_file() or (path / "state.json").is_file())
    if not run:
        raise ConfigError(f"{path} exists and is no run directory; choose another `name=...` or `run_dir=...`")
    if not overwrite:
        raise ConfigError(
            f"{path} exists. `hone resume {path}` continues it, `name=...` starts another run, "
            "`--overwrite` deletes it and starts again"
        )


def _empty(path: Path) -> None:
    for item in path.iterdir():
        if item.name in (".lock", ".lock.guard"):
            continue
        if item.is_dir() and not item.is_symlink():
            shutil.rmtree(item)
        else:
            item.unlink()
