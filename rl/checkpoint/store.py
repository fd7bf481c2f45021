"""A folder of checkpoints, each complete or absent.

Layout: ``checkpoints/step-000012/`` with ``manifest.json`` last, and ``checkpoints/latest`` with the
name of the newest. A checkpoint is written as ``tmp-step-...``, flushed to disk and renamed, so a
crash at any moment leaves the previous one in charge.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import random
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rl.config.schema import CheckpointConfig

log = logging.getLogger(__name__)
FORMAT = 3
_NAME = re.compile(r"step-(\d{6,})(\.old)?")


class CheckpointError(RuntimeError):
    """A checkpoint is missing, incomplete or of another format; says which and what to do."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint."""

    step: int
    path: Path

    def state(self) -> dict[str, Any]:
        """The controller's state as it was saved.

        Raises:
            CheckpointError: it is missing or torn.
        """
        try:
            return json.loads((self.path / "controller.json").read_bytes())
        except (OSError, ValueError) as error:
            raise CheckpointError(f"the controller.json of {self.path} cannot be read: {error}") from None

    def manifest(self) -> dict[str, Any]:
        """Sizes and checksums of the files.

        Raises:
            CheckpointError: it is missing or torn, so that the checkpoint is none.
        """
        try:
            manifest = json.loads((self.path / "manifest.json").read_bytes())
            return manifest | {"files": dict(manifest["files"])}
        except FileNotFoundError:
            raise CheckpointError(f"{self.path} has no manifest.json") from None
        except (ValueError, KeyError, TypeError):  # ValueError: no JSON, or no UTF-8
            raise CheckpointError(f"the manifest.json of {self.path} is torn") from None

    def bytes(self) -> int:
        return sum(entry["bytes"] for entry in self.manifest()["files"].values())

    def value(self) -> float | None:
        """Of the metric that ranked it when it was saved."""
        return self.manifest().get("value")


@dataclass(frozen=True, slots=True)
class Retention:
    """Which checkpoints survive: the newest ``last``, every ``every``-th step, and the ``best`` by their metric."""

    last: int = 2
    every: int = 0
    best: int = 0
    lower_is_better: bool = False

    def kept(self, checkpoints: Sequence[Checkpoint]) -> set[int]:
        """Steps to keep, of checkpoints in order of step. The newest is always among them."""
        newest = {c.step for c in checkpoints[-max(1, self.last) :]}
        regular = {c.step for c in checkpoints if self.every and c.step % self.every == 0}
        return newest | regular | {c.step for c in self.ranked(checkpoints)[: self.best]}

    def ranked(self, checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
        """Those that have a value, best first; of equal ones the older first."""
        valued = [(value, c) for c in checkpoints if (value := c.value()) is not None]
        return [c for _, c in sorted(valued, key=lambda pair: pair[0] if self.lower_is_better else -pair[0])]


def retention(checkpoint: CheckpointConfig) -> Retention:
    """The config's rules as the store's."""
    best = checkpoint.keep_best if checkpoint.best is not None else 0
    return Retention(checkpoint.keep, checkpoint.keep_every, best, checkpoint.best_mode == "min")


class CheckpointStore:
    """Checkpoints of one run.

    Args:
        root: the run's ``checkpoints`` folder; made when missing.
        retention: which survive ``prune``. What is on disk decides, over restarts too.
    """

    def __init__(self, root: Path, retention: Retention | None = None) -> None:
        self.root, self.retention = root, retention or Retention()
        root.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def writing(self, step: int, *, value: float | None = None) -> Iterator[Path]:
        """A folder to fill; it becomes the checkpoint of ``step`` when the block ends without an error.

        Args:
            value: of the metric that ranks checkpoints.

        Raises:
            CheckpointError: the disk has less room than the newest checkpoint takes, or the write failed
                for lack of it. Older checkpoints stay.
        """
        scratch = self.begin(step)
        with self.discarding(scratch):
            yield scratch
        self.commit(scratch, step, value=value)

    def begin(self, step: int) -> Path:
        """An empty folder for the files of ``step``, which `commit` makes a checkpoint."""
        before = self.complete()
        if before:  # it takes what the last one took
            self.check_room(before[-1].bytes())
        scratch = self.root / f"tmp-step-{step:06d}"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        return scratch

    @contextlib.contextmanager
    def discarding(self, scratch: Path) -> Iterator[None]:
        """Removes the folder when the block fails."""
        try:
            yield
        except OSError as error:
            shutil.rmtree(scratch, ignore_errors=True)
            if error.errno == errno.ENOSPC:
                raise CheckpointError(f"the disk of {self.root} is full; older checkpoints are untouched") from error
            raise
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise

    def commit(self, scratch: Path, step: int, *, value: float | None = None) -> None:
        """Flushes the folder's files, lists them in a manifest and makes it the checkpoint of ``step``."""
        with self.discarding(scratch):
            self._seal(scratch, step, value)
        target = self.root / f"step-{step:06d}"
        if target.exists():  # the same step again; a crash between the renames leaves the older one readable
            old = target.with_suffix(".old")
            shutil.rmtree(old, ignore_errors=True)
            target.rename(old)
        scratch.rename(target)
        _flush(self.root)
        self._point_latest(target.name)
        self.prune()

    def all(self) -> list[Checkpoint]:
        """Whole and damaged checkpoints, oldest first."""
        found: dict[int, Checkpoint] = {}
        for path in sorted(self.root.iterdir(), reverse=True):  # step-N after step-N.old
            match = _NAME.fullmatch(path.name)
            if match and path.is_dir():
                found[int(match[1])] = Checkpoint(int(match[1]), path)
        return sorted(found.values(), key=lambda c: c.step)

    def complete(self) -> list[Checkpoint]:
        """Those of this format whose files are all there with the right sizes, oldest first."""
        found = []
        for checkpoint in self.all():
            with contextlib.suppress(CheckpointError):  # of another format
                if verify(checkpoint, contents=False) is None:
                    found.append(checkpoint)
        return found

    def find(self, name: str) -> Checkpoint:
        """``latest``, ``best``, or a step number.

        Raises:
            CheckpointError: there is none; names those that there are.
        """
        if name in ("latest", "best"):
            found = self.latest() if name == "latest" else self.best()
        else:
            found = next((c for c in self.complete() if str(c.step) == name.removeprefix("step-").lstrip("0")), None)
        if found is None:
            steps = [c.step for c in self.complete()]
            raise CheckpointError(f"{self.root} has no checkpoint {name!r}; complete ones are of steps {steps}")
        return found

    def best(self) -> Checkpoint | None:
        """The complete checkpoint with the best value."""
        ranked = self.retention.ranked(self.complete())
        return ranked[0] if ranked else None

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint whose files are all there with the right sizes."""
        for checkpoint in reversed(self.all()):
            fault = verify(checkpoint, contents=False)
            if fault is None:
                return checkpoint
            log.warning("%s is damaged (%s); trying an older one", checkpoint.path, fault)
        return None

    def prune(self) -> None:
        """Deletes what `Retention` does not keep and what a crash left half written.

        Damaged checkpoints neither count as kept nor are deleted: a person may want to look at them.
        """
        whole = self.complete()
        kept = self.retention.kept(whole)
        for checkpoint in whole:
            if checkpoint.step not in kept:
                shutil.rmtree(checkpoint.path, ignore_errors=True)
        for path in self.root.glob("tmp-step-*"):
            shutil.rmtree(path, ignore_errors=True)
        for old in self.root.glob("step-*.old"):
            if (old.with_suffix("") / "manifest.json").is_file():
                shutil.rmtree(old, ignore_errors=True)

    def check_room(self, wanted: int) -> None:
        """Raises CheckpointError where the disk has less than ``wanted`` bytes free."""
        free = shutil.disk_usage(self.root).free
        if free < wanted:
            raise CheckpointError(
                f"{self.root} has {free / 2**30:.2f} GiB free and a checkpoint takes {wanted / 2**30:.2f} GiB: make "
                "room or set checkpoint.keep lower; older checkpoints are untouched"
            )

    def _seal(self, folder: Path, step: int, value: float | None) -> None:
        files = {}
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            files[path.relative_to(folder).as_posix()] = {"bytes": path.stat().st_size, "blake2b": _digest(path)}
            _flush(path)
        manifest = folder / "manifest.json"
        manifest.write_text(json.dumps({"format": FORMAT, "step": step, "value": value, "files": files}, indent=1))
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
    try:
        manifest = checkpoint.manifest()
    except CheckpointError as error:
        return str(error)
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
    (folder / "controller.json").write_text(json.dumps(state))


def random_state() -> dict[str, Any]:
    """Python's and NumPy's global generators, which a reward or a planner may draw from, as JSON values."""
    kind, keys, *rest = np.random.get_state()
    return {"python": random.getstate(), "numpy": [kind, np.asarray(keys).tolist(), *rest]}


def load_random_state(state: Mapping[str, Any]) -> None:
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.asarray(keys, np.uint32), *rest))


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
