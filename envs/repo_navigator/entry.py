"""Which file an episode starts from. The choice bounds what can be reached, so it is recorded.

No policy but `oracle` and `given` ever picks a test or a file of the gold patch: that would give
away part of the answer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath

from envs.repo_navigator.gold import is_source_path
from envs.repo_navigator.snapshot import Snapshot
from envs.repo_navigator.source import read_source

POLICIES = ("auto", "mentioned", "imports", "root", "given", "oracle")
_FILE = re.compile(r"[\w./-]+\.py\b")
_IMPORT = re.compile(r"^\s*(?:>>> )?(?:from\s+([\w.]+)\s+import|import\s+([\w.]+))", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Entry:
    path: str
    policy: str
    """The rule that found it; `oracle` and `given` may leak."""


def choose_entry(
    policy: str, issue: str, snapshot: Snapshot, gold_files: Collection[str], given: str | None = None
) -> Entry:
    """The file an episode starts from.

    Args:
        policy: `mentioned` (named in the issue), `imports` (imported by its code), `root` (the
            package's own `__init__`), `auto` (the first of these that finds one), `given` (the
            task's column), `oracle` (a gold file: for upper bounds only).

    Raises:
        ValueError: the policy is unknown, or finds no file.
    """
    if policy not in POLICIES:
        raise ValueError(f"unknown entry policy {policy!r}; known: {', '.join(POLICIES)}")
    if policy == "oracle":
        return Entry(sorted(gold_files)[0], "oracle")
    if policy == "given":
        if not given:
            raise ValueError("entry policy `given` needs the column `entry` in each task")
        return Entry(snapshot.locate(given)[0], "given")
    finders = {
        "mentioned": _mentioned(issue, snapshot),
        "imports": _imported(issue, snapshot),
        "root": _root(snapshot),
    }
    for name in finders if policy == "auto" else (policy,):
        for path in finders[name]:
            if path not in gold_files and is_source_path(path):
                return Entry(path, name)
    raise ValueError(f"entry policy {policy!r} finds no file that is neither a test nor part of the gold patch")


def _mentioned(issue: str, snapshot: Snapshot) -> Iterator[str]:
    """Files whose path ends with one that the issue names, tracebacks included."""
    for match in _FILE.finditer(issue):
        parts = PurePosixPath(match[0]).parts
        for start in range(len(parts)):
            tail = "/".join(parts[start:])
            same = [f for f in snapshot.files if f == tail or f.endswith("/" + tail)]
            if len(same) == 1:
                yield same[0]
                break


def _imported(issue: str, snapshot: Snapshot) -> Iterator[str]:
    for match in _IMPORT.finditer(issue):
        stem = (match[1] or match[2]).replace(".", "/")
        for root in snapshot.source_roots:
            base = f"{root}/{stem}" if root else stem
            yield from (f for f in (f"{base}.py", f"{base}/__init__.py") if f in snapshot.files)


def _root(snapshot: Snapshot) -> Iterator[str]:
    """Package roots with most modules first, then the modules that know most names.

    Lazy: parsing a large project's largest files takes seconds, and the first root mostly is the answer.
    """
    yield from (f for f in _package_roots(snapshot) if read_source(snapshot.root / f).names())
    yield from _richest(snapshot)


@lru_cache(maxsize=256)
def _package_roots(snapshot: Snapshot) -> tuple[str, ...]:
    size: Counter[str] = Counter()
    for file in snapshot.files:
        size.update(p.as_posix() for p in PurePosixPath(file).parents)
    packages = {PurePosixPath(f).parent for f in snapshot.files if PurePosixPath(f).name == "__init__.py"}
    tops = sorted((p for p in packages if p.parent not in packages), key=lambda p: (-size[p.as_posix()], p.as_posix()))
    return tuple((p / "__init__.py").as_posix() for p in tops)


@lru_cache(maxsize=256)
def _richest(snapshot: Snapshot) -> tuple[str, ...]:
    bytes_of = {f: (snapshot.root / f).stat().st_size for f in snapshot.files if is_source_path(f)}
    largest = sorted(bytes_of, key=lambda f: (-bytes_of[f], f))[:20]
    return tuple(sorted(largest, key=lambda f: (-len(read_source(snapshot.root / f).names()), f)))
