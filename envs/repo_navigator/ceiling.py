"""What an episode could find at best, and what trivial answers score.

The ceiling is a breadth-first search by jumps from the entry file: dynamic dispatch, registries,
callbacks and callers of the entry cannot be reached, whatever the policy does. Tasks whose ceiling
is 0 teach nothing and should be dropped.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from envs.repo_navigator.answer import canonical_set
from envs.repo_navigator.backend import DefinitionBackend
from envs.repo_navigator.jump import MAX_SITES, JumpTool, Place
from envs.repo_navigator.snapshot import Snapshot
from envs.repo_navigator.source import read_source


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Reachability of one task."""

    reachable: float
    """Share of the gold within the number of calls, each by its own shortest chain."""
    reachable_unlimited: float
    best_dice: float
    """Dice of the answer that names exactly the gold that can be reached within the calls."""
    complete: bool
    """Whether the search saw everything; otherwise the numbers are lower bounds."""


Reached = tuple[dict[str, int], bool]


async def reach(
    snapshot: Snapshot, entry: str, backend: DefinitionBackend, *, max_sites: int = 5000, timeout_s: float = 20.0
) -> Reached:
    """Locations and the fewest jumps that show each (0: in the entry file), and whether none was left out."""
    tool = JumpTool(snapshot, backend)
    source = read_source(snapshot.root / entry)
    depth_of = {f"{entry}::{d.qualname}": 0 for d in source.definitions}
    shown = {Place(entry, "", 1, len(source.lines))}
    frontier, depth, sites = list(shown), 0, 0
    asked: set[tuple[str, int, int]] = set()
    while frontier:
        depth += 1
        following: list[Place] = []
        for place in frontier:
            text = read_source(snapshot.root / place.path)
            uses = (u for n in sorted(text.names()) for u in text.occurrences(n) if place.start <= u.line <= place.end)
            positions = sorted({(u.line, u.column) for u in uses if (place.path, u.line, u.column) not in asked})
            asked |= {(place.path, *p) for p in positions}
            sites += len(positions)
            for start in range(0, len(positions), MAX_SITES):
                chunk = positions[start : start + MAX_SITES]
                for answer in await backend.resolve(snapshot, place.path, text.text, chunk, timeout_s=timeout_s):
                    for target in answer.targets:
                        found = tool.place_of(target)
                        if found is not None and found not in shown:
                            shown.add(found)
                            following.append(found)
                            _mark(depth_of, snapshot, found, depth)
            if sites > max_sites:
                return depth_of, False
        frontier = following
    return depth_of, True


def _mark(depth_of: dict[str, int], snapshot: Snapshot, place: Place, depth: int) -> None:
    """A shown class shows its methods, a shown module its definitions."""
    for d in read_source(snapshot.root / place.path).definitions:
        if place.start <= d.start and d.end <= place.end:
            depth_of.setdefault(f"{place.path}::{d.qualname}", depth)


def ceiling(reached: Reached, snapshot: Snapshot, gold: Collection[str], *, max_calls: int = 12) -> Ceiling:
    """Reachability of the gold locations, from what `reach` found."""
    depth_of, complete = reached
    wanted = canonical_set(gold, snapshot, qualified=True)
    files = {location.partition("::")[0] for location in depth_of}
    near = [g for g in wanted if depth_of.get(g, max_calls + 1) <= max_calls or g in files]
    ever = [g for g in wanted if g in depth_of or g in files]
    return Ceiling(
        len(near) / len(wanted), len(ever) / len(wanted), 2 * len(near) / (len(near) + len(wanted)), complete
    )


async def baseline_answers(
    snapshot: Snapshot, entry: str, issue: str, gold: Collection[str], backend: DefinitionBackend, *, seed: int = 0
) -> Mapping[str, Collection[str]]:
    """Answers that need no model, by name: a policy that does not beat them has learnt nothing."""
    wanted = canonical_set(gold, snapshot, qualified=True)
    depth_of, _ = await reach(snapshot, entry, backend)
    functions = sorted(x for x in depth_of if _is_function(snapshot, x))
    own = [x for x in functions if x.startswith(entry + "::")]
    named = [x for x in functions if x.rpartition("::")[2].rpartition(".")[2] in issue]
    drawn = random.Random(seed).sample(functions, min(len(wanted), len(functions)))
    return {"empty": (), "entry": own, "named_in_issue": named, "random_reachable": drawn, "oracle": wanted}


def _is_function(snapshot: Snapshot, location: str) -> bool:
    path, _, name = location.partition("::")
    return any(d.qualname == name and d.kind == "function" for d in read_source(snapshot.root / path).definitions)
