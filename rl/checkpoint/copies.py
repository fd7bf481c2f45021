"""Checkpoints copied to another place as they are made: any fsspec URL, `s3://`, `gs://` or a second disk.

Layout there: ``URL/NAME/`` with the run's small files and ``checkpoints/step-000012/``, whose ``manifest.json`` is
sent last: a copy is complete or absent, like a checkpoint.
"""

from __future__ import annotations

import json
import logging
import posixpath
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl.checkpoint.store import Checkpoint, CheckpointError, CheckpointStore, Retention, verify
from rl.config.errors import ConfigError
from rl.tracking.run_directory import RECORDS

log = logging.getLogger(__name__)
RUN_FILES = (
    *RECORDS,
    *("recipe.yaml", "command.json", "metrics.jsonl", "files/*", "plots/*"),
)
"""What of a run goes with its checkpoints: enough to resume it elsewhere."""


def is_url(place: str | Path) -> bool:
    return "://" in str(place)


class Copies:
    """The copies of one run.

    Args:
        url: the folder that holds runs.
        retention: which copies survive; as on disk.

    Raises:
        ConfigError: the URL's protocol is unknown, or its package is not installed.
    """

    def __init__(self, url: str, run: Path, retention: Retention | None = None) -> None:
        self._fs, root = open_place(url)
        self._run, self._retention = run, retention or Retention()
        self._root = posixpath.join(root, run.name)

    def update(self, store: CheckpointStore) -> None:
        """Sends checkpoints that are whole here and not there, then the run's files, and prunes. Blocks.

        A call that fails loses nothing: the next one sends what is lacking.
        """
        self._fs.invalidate_cache()
        there = {copy.step: copy for copy in list_copies(self._fs, self._root)}
        for checkpoint in store.complete():
            copy = there.get(checkpoint.step)
            if copy is None or copy.manifest() != checkpoint.manifest():
                self._send(checkpoint)
        for pattern in RUN_FILES:
            for path in sorted(self._run.glob(pattern)):
                self._put(path, posixpath.join(self._root, path.relative_to(self._run).as_posix()))
        self._fs.invalidate_cache()
        copies = list_copies(self._fs, self._root)
        kept = self._retention.kept(copies)
        for copy in copies:
            if copy.step not in kept:
                self._fs.rm_file(posixpath.join(copy.place, "manifest.json"))  # first: half a copy is none
                self._fs.rm(copy.place, recursive=True)

    def _send(self, checkpoint: Checkpoint) -> None:
        place = posixpath.join(self._root, "checkpoints", checkpoint.path.name)
        manifest = posixpath.join(place, "manifest.json")
        if self._fs.exists(manifest):
            self._fs.rm_file(manifest)
        for name in checkpoint.manifest()["files"]:
            self._put(checkpoint.path / name, posixpath.join(place, name))
        self._put(checkpoint.path / "manifest.json", manifest)

    def _put(self, path: Path, place: str) -> None:
        self._fs.makedirs(posixpath.dirname(place), exist_ok=True)
        self._fs.put_file(str(path), place)


@dataclass(frozen=True, slots=True)
class Copy(Checkpoint):
    """A complete checkpoint in another place; ``path`` is only its name."""

    place: str = ""
    fs: Any = None

    def manifest(self) -> dict[str, Any]:
        return json.loads(self.fs.cat_file(posixpath.join(self.place, "manifest.json")))


def list_copies(fs: Any, root: str) -> list[Copy]:
    """Complete copies, oldest first."""
    folder = posixpath.join(root, "checkpoints")
    if not fs.exists(folder):
        return []
    found = []
    for place in fs.ls(folder, detail=False):
        name = posixpath.basename(place.rstrip("/"))
        if name.startswith("step-") and name[5:].isdigit() and fs.exists(posixpath.join(place, "manifest.json")):
            found.append(Copy(int(name[5:]), Path(name), place.rstrip("/"), fs))
    return sorted(found, key=lambda copy: copy.step)


def fetch(url: str, runs: Path = Path("runs")) -> Path:
    """The run at ``url`` (`s3://bucket/folder/NAME`) as a folder of ``runs``, ready to resume.

    A folder of that name that is there already is used where its newest checkpoint is as new as the copy's.

    Raises:
        CheckpointError: there is no whole copy, or the folder here is another run.
    """
    fs, root = open_place(url)
    copies = list_copies(fs, root)
    if not copies:
        raise CheckpointError(f"{url} holds no complete checkpoint of a run; name the folder of the run itself")
    target = runs.resolve() / posixpath.basename(root)
    state = json.loads(fs.cat_file(posixpath.join(root, "state.json")))
    if (target / "state.json").is_file():
        if json.loads((target / "state.json").read_text()).get("run_id") != state.get("run_id"):
            raise CheckpointError(f"{target} is another run than {url}; move it away or resume in another folder")
        latest = CheckpointStore(target / "checkpoints").latest()
        if latest is not None and latest.step >= copies[-1].step:
            return target
    for place in fs.find(root):
        name = posixpath.relpath(place, root)
        if not name.startswith("checkpoints/"):
            _get(fs, place, target / name)
    store = CheckpointStore(target / "checkpoints")
    for copy in reversed(copies):
        scratch = store.begin(copy.step)
        with store.discarding(scratch):
            for place in fs.find(copy.place):
                _get(fs, place, scratch / posixpath.relpath(place, copy.place))
        fault = verify(Checkpoint(copy.step, scratch))
        if fault is None:
            (scratch / "manifest.json").unlink()  # written anew, for what has arrived
            store.commit(scratch, copy.step, value=copy.value())
            return target
        shutil.rmtree(scratch)
        log.warning("the copy of step %d at %s is damaged (%s); trying an older one", copy.step, url, fault)
    raise CheckpointError(f"every copy at {url} is damaged")


def open_place(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    import fsspec

    try:
        fs, root = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise ConfigError(f"{url}: {error} (for S3: pip install 'hone-rl[s3]')") from error
    except ValueError as error:
        raise ConfigError(f"{url}: {error}") from error
    return fs, root.rstrip("/")


def _get(fs: Any, place: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fs.get_file(place, str(path))
