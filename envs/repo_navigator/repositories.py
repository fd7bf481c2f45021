"""From a task's columns to its snapshot.

`repository` names the code: `bundled:NAME`, `folder:PATH`, `git:PATH@COMMIT` or `sdist:FILE.tar.gz`;
`overlay` (relative path -> text) replaces files, as a planted bug does; `snapshot_id`, when given,
must match, so that a changed folder cannot silently become another task.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envs.repo_navigator.snapshot import Snapshot, SnapshotStore

BUNDLED = Path(__file__).with_name("bundled")
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
    kind, _, place = spec.partition(":")
    overlay = columns.get("overlay") or {}
    if kind == "bundled":
        snapshot = store.from_files(bundled_files(place), overlay=overlay)
    elif kind == "folder":
        snapshot = store.from_folder(place, overlay=overlay)
    elif kind == "sdist":
        snapshot = store.from_sdist(Path(place).expanduser(), overlay=overlay)
    elif kind == "git":
        path, _, commit = place.rpartition("@")
        snapshot = store.from_git(Path(path).expanduser(), commit, overlay=overlay)
    else:
        raise ValueError(f"column `repository` is {spec!r}; it starts with bundled:, folder:, git: or sdist:")
    wanted = columns.get("snapshot_id")
    if wanted and wanted != snapshot.snapshot_id:
        raise ValueError(f"{spec} has changed: snapshot {snapshot.snapshot_id}, the task was made on {wanted}")
    return snapshot
