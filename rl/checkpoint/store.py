"""A folder of checkpoints, each complete or absent.

Layout: ``checkpoints/step-000012/`` with ``manifest.json`` last, and ``checkpoints/latest`` with the
name of the newest. A checkpoint is written as ``tmp-step-...``, flushed to disk and renamed, so a
crash at any moment leaves the previous one in charge.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)
FORMAT = 1
_NAME = re.compile(r"step-(\d{6,})")


class CheckpointError(RuntimeError):
    """A checkpoint is missing, incomplete or of another format; says which and what to do."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint."""

    step: int
    path: Path

    def state(self) -> dict[str, Any]:
        """The controller's state as it was saved."""
        return json.loads((self.path / "controller.json").read_text())

    def manifest(self) -> dict[str, Any]:
        return json.loads((self.path / "manifest.json").read_text())


class CheckpointStore:
    """Checkpoints of one run.

    Args:
        root: the run's ``checkpoints`` folder; made when missing.
        keep: newest checkpoints that survive ``prune``; at least 1.
    """

    def __init__(self, root: Path, *, keep: int = 2) -> None:
        self.root, self.keep = root, max(1, keep)
        root.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def writing(self, step: int) -> Iterator[Path]:
        """A folder to fill; it becomes the checkpoint of ``step`` when the block ends without an error."""
        scratch = self.root / f"tmp-step-{step:06d}"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        try:
            yield scratch
            self._seal(scratch, step)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        target = self.root / f"step-{step:06d}"
        if target.exists():  # the same step again, after a resume
            shutil.rmtree(target)
        scratch.rename(target)
        _flush(self.root)
        self._point_latest(target.name)
        self.prune()

    def list(self) -> list[Checkpoint]:
        """Complete checkpoints, oldest first."""
        found = []
        for path in self.root.iterdir():
            match = _NAME.fullmatch(path.name)
            if match and (path / "manifest.json").is_file():
                found.append(Checkpoint(int(match[1]), path))
        return sorted(found, key=lambda c: c.step)

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint whose files are all there with the right sizes."""
        for checkpoint in reversed(self.list()):
            fault = verify(checkpoint, contents=False)
            if fault is None:
                return checkpoint
            log.warning("%s is damaged (%s); trying an older one", checkpoint.path, fault)
        return None

    def prune(self) -> None:
        """Deletes all but the newest ``keep`` and what a crash left half written."""
        for checkpoint in self.list()[: -self.keep]:
            shutil.rmtree(checkpoint.path, ignore_errors=True)
        for path in self.root.glob("tmp-step-*"):
            shutil.rmtree(path, ignore_errors=True)

    def _seal(self, folder: Path, step: int) -> None:
        files = {}
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            files[path.relative_to(folder).as_posix()] = {"bytes": path.stat().st_size, "blake2b": _digest(path)}
            _flush(path)
        manifest = folder / "manifest.json"
        manifest.write_text(json.dumps({"format": FORMAT, "step": step, "files": files}, indent=1))
        _flush(manifest)
        _flush(folder)

    def _point_latest(self, name: str) -> None:
        aside = self.root / "latest.tmp"
        aside.write_text(name + "\n")
        _flush(aside)
        aside.rename(self.root / "latest")


def verify(checkpoint: Checkpoint, *, contents: bool = True) -> str | None:
    """What is wrong with a checkpoint, or ``None``.

    Args:
        contents: also read every file and compare checksums.

    Raises:
        CheckpointError: another format, which this version cannot read.
    """
    manifest = checkpoint.manifest()
    if manifest.get("format") != FORMAT:
        raise CheckpointError(
            f"{checkpoint.path} has format {manifest.get('format')}; this version of Hone reads format {FORMAT}"
        )
    for name, expected in manifest["files"].items():
        path = checkpoint.path / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != expected["bytes"]:
            return f"{name} has {path.stat().st_size} bytes instead of {expected['bytes']}"
        if contents and _digest(path) != expected["blake2b"]:
            return f"{name} has another checksum"
    return None


def write_state(folder: Path, state: Mapping[str, Any]) -> None:
    """Writes the controller's state; plain JSON values only."""
    (folder / "controller.json").write_text(json.dumps(state, indent=1))


def _digest(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
