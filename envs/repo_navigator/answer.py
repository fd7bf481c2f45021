"""From the policy's last turn to a set of locations, and from sets to scores."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from envs.parsing import visible_text
from envs.repo_navigator.snapshot import BadPath, Snapshot
from envs.repo_navigator.source import read_source

MAX_IDS = 1000
"""An answer with more locations is cut: it is a guess at everything and scores near 0 anyway."""
_BOX = re.compile(r"\\boxed\s*\{")
_WRAPPING = " \t\n\r`'\"*"


def last_boxed(text: str) -> str | None:
    """Content of the last `\\boxed{...}` with balanced braces outside thinking; `None` when there is none."""
    text = visible_text(text)
    for match in reversed(list(_BOX.finditer(text))):
        depth = 1
        for i in range(match.end(), len(text)):
            depth += {"{": 1, "}": -1}.get(text[i], 0)
            if depth == 0:
                return text[match.end() : i]
    return None


def parse_answer(text: str) -> tuple[str, ...] | None:
    """Locations of the last box, as written, without repeats; `None` when there is no box.

    Only the policy's own last turn may be given: a box in an issue or in a tool's result is no answer.
    """
    content = last_boxed(text)
    if content is None:
        return None
    content = re.sub(r"\\text(?:tt)?\s*\{|[{}]", "", content).replace("\\_", "_")
    parts = (p.strip(_WRAPPING) for p in re.split(r"[,\n;]", content))
    return tuple(dict.fromkeys(p for p in parts if p))[:MAX_IDS]


def canonical(location: str, snapshot: Snapshot, *, qualified: bool) -> str:
    """The one spelling of a location.

    Args:
        qualified: ids are `path::Class.method`, and a bare name stands for it only where it is unique
            in its file; otherwise (as in the paper) ids are `path::name`.

    Unknown locations stay as written: they count as misses.
    """
    path, separator, name = location.partition("::")
    path = PurePosixPath(path.strip(_WRAPPING) or ".").as_posix()
    name = name.strip(_WRAPPING).removesuffix("()").replace("::", ".").replace(".<locals>", "")
    if not separator or not name:
        return path
    if not qualified:
        return f"{path}::{name.rpartition('.')[2]}"
    try:
        path, real = snapshot.locate(path)
    except BadPath:
        return f"{path}::{name}"
    names = {d.qualname for d in read_source(real).definitions}
    if name not in names:
        ends = [n for n in names if n.endswith("." + name)]
        name = ends[0] if len(ends) == 1 else name
    return f"{path}::{name}"


def canonical_set(locations: Iterable[str], snapshot: Snapshot, *, qualified: bool) -> frozenset[str]:
    return frozenset(canonical(x, snapshot, qualified=qualified) for x in locations)


def files_of(locations: Iterable[str]) -> frozenset[str]:
    return frozenset(x.partition("::")[0] for x in locations)


@dataclass(frozen=True, slots=True)
class Scores:
    """Overlap of a predicted and a gold set, each in [0, 1]; all 0 when nothing is predicted."""

    recall: float
    precision: float
    dice: float
    """2|P & G| / (|P| + |G|), the F1 of one sample."""
    iou: float
    """|P & G| / |P | G| = dice / (2 - dice)."""

    def named(self, level: str) -> dict[str, float]:
        return {f"{level}_{n}": float(getattr(self, n)) for n in ("recall", "precision", "dice", "iou")}


def score(predicted: Collection[str], gold: Collection[str]) -> Scores:
    """Compares two sets.

    Raises:
        ValueError: the gold set is empty; such a task must be dropped when it is built.
    """
    p, g = frozenset(predicted), frozenset(gold)
    if not g:
        raise ValueError("the task has no gold location")
    hit = len(p & g)
    if not p:
        return Scores(0.0, 0.0, 0.0, 0.0)
    return Scores(hit / len(g), hit / len(p), 2 * hit / (len(p) + len(g)), hit / len(p | g))
