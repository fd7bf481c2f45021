"""From a task's columns to its snapshot.

`repository` names the code: `bundled:NAME`, `folder:PATH`, `git:PATH@COMMIT` or `sdist:FILE.tar.gz`;
`overlay` (relative path -> text) replaces files, as a planted bug does; `snapshot_id`, when given,
must match, so that a changed folder cannot silently become another task.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envs.repo_navigator.snapshot import Snapshot, SnapshotStore

BUNDLED = Path(__file__).with_name("bundled")
MAX_OPENED = 512
_opened: dict[tuple[str, str, str], Snapshot] = {}
_lock = threading.Lock()
_HEADER = re.compile(r"^=== (\S+\.pyi?)\n", re.MULTILINE)


def bundled_names() -> list[str]:
    """The small repositories that ship with Hone, for tests and first tries."""
    return sorted(p.stem for p in BUNDLED.glob("*.txt"))


def bundled_files(name: str) -> dict[str, str]:
    """Texts of a bundled repository by relative path.

    Raises:
        ValueError: there is none of that name.
    """
    path = BUNDLED / f"{name}.txt"
    if not path.is_file():
        raise ValueError(f"no bundled repository {name!r}; there are {', '.join(bundled_names())}")
    parts = _HEADER.split(path.read_text(encoding="utf-8"))
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def open_snapshot(columns: Mapping[str, Any], store: SnapshotStore) -> Snapshot:
    """The snapshot that a task is about. Blocks: call it off the event loop.

    Raises:
        ValueError: the columns name no repository, or its content is not the recorded one.
    """
    spec = str(columns.get("repository") or "")
    overlay = columns.get("overlay") or {}
    wanted = columns.get("snapshot_id")
    digest = hashlib.blake2b(repr(sorted(overlay.items())).encode(), digest_size=16).hexdigest()
    key = (str(store.folder), spec, digest)
    with _lock:  # a group opens the same one at once: unpack it once
        if key not in _opened or not _opened[key].root.is_dir():
            known = store.known(str(wanted)) if wanted else None
            _opened[key] = known or _make(spec, overlay, store)
            if len(_opened) > MAX_OPENED:
                del _opened[next(iter(_opened))]
        snapshot = _opened[key]
    if wanted and wanted != snapshot.snapshot_id:
        raise ValueError(f"{spec} has changed: snapshot {snapshot.snapshot_id}, the task was made on {wanted}")
    return snapshot


def _make(spec: str, overlay: Mapping[str, str], store: SnapshotStore) -> Snapshot:
    kind, _, place = spec.partition(":")
    if kind == "bundled":
        return store.from_files(bundled_files(place), overlay=overlay)
    if kind == "folder":
        return store.from_folder(place, overlay=overlay)
    if kind == "sdist":
        return store.from_sdist(Path(place).expanduser(), overlay=overlay)
    if kind == "git":
        path, _, commit = place.rpartition("@")
        return store.from_git(Path(path).expanduser(), commit, overlay=overlay)
    raise ValueError(f"column `repository` is {spec!r}; it starts with bundled:, folder:, git: or sdist:")
