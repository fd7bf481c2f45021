"""The tool: from a name used in a file to the code that defines it."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from envs.repo_navigator.backend import Answer, DefinitionBackend, Target
from envs.repo_navigator.snapshot import BadPath, Snapshot
from envs.repo_navigator.source import Definition, Occurrence, Source, load_source, read_source

MAX_SITES = 16
"""Uses of a name that are resolved when no index picks one."""
MAX_NAME = 200
CLASS_LINES = 80
"""A longer class is shown as its outline."""

CountTokens = Callable[[str], int]


class Status(StrEnum):
    """How a call ended."""

    OK = "ok"
    AMBIGUOUS = "ambiguous"
    EXTERNAL = "external"
    UNRESOLVED = "unresolved"
    NOT_IN_FILE = "not_in_file"
    BAD_PATH = "bad_path"
    BAD_ARGUMENTS = "bad_arguments"
    PARSE_ERROR = "parse_error"
    TIMEOUT = "timeout"
    INTERNAL = "internal"

    @property
    def success(self) -> bool:
        return self in (Status.OK, Status.AMBIGUOUS, Status.EXTERNAL)

    @property
    def neutral(self) -> bool:
        """Not the policy's fault: dynamic code, a missing dependency, a limit of ours."""
        return self in (Status.UNRESOLVED, Status.TIMEOUT, Status.INTERNAL)


@dataclass(frozen=True, slots=True)
class Place:
    """A definition found in the repository."""

    path: str
    qualname: str
    """Empty for a module, `<statement>` for an assignment."""
    start: int
    end: int

    @property
    def location(self) -> str:
        return f"{self.path}::{self.qualname}"


@dataclass(frozen=True, slots=True)
class JumpResult:
    """What the policy reads, and what it was made from."""

    status: Status
    content: str
    places: tuple[Place, ...] = field(default=())


class JumpTool:
    """`jump` in one snapshot. Static analysis only: no code of the repository runs.

    Args:
        ambiguity: several definitions are listed (`list`) or the first is shown with a note (`first`).
        timeout_s: limit of one call; the resolver is killed at it.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        backend: DefinitionBackend,
        *,
        max_tokens: int = 2048,
        timeout_s: float = 20.0,
        ambiguity: str = "list",
    ) -> None:
        if ambiguity not in ("list", "first"):
            raise ValueError(f"ambiguity is 'list' or 'first', not {ambiguity!r}")
        self.snapshot = snapshot
        self.backend = backend
        self.max_tokens = max_tokens
        self.timeout_s = timeout_s
        self.ambiguity = ambiguity

    async def jump(
        self,
        symbol: str,
        file_path: str,
        index: int | None = None,
        *,
        count_tokens: CountTokens,
        max_tokens: int | None = None,
        timeout_s: float | None = None,
    ) -> JumpResult:
        """Definition of `symbol` as used in `file_path`; `index` (from 1) picks one of several uses."""
        budget = min(self.max_tokens, max_tokens if max_tokens is not None else self.max_tokens)
        try:
            path, real = self.snapshot.locate(file_path)
            source = await load_source(real)
        except BadPath as error:
            return JumpResult(Status.BAD_PATH, f"Error: {error}.")
        prefix, _, name = symbol.strip().rpartition(".")
        if not name.isidentifier() or len(name) > MAX_NAME:
            return JumpResult(Status.BAD_ARGUMENTS, f"Error: {symbol[:80]!r} is not a Python name.")
        sites = source.occurrences(name)
        if not sites:
            return _not_in_file(source, name, path)
        sites = tuple(s for s in sites if prefix and _ends_with(s.prefix, prefix)) or sites
        if index is not None:
            if not 1 <= index <= len(sites):
                said = f"Error: index {index} is out of range; {path} uses {name} {len(sites)} times."
                return JumpResult(Status.BAD_ARGUMENTS, said)
            sites = (sites[index - 1],)
        asked = sites[:MAX_SITES]
        limit = self.timeout_s if timeout_s is None else min(self.timeout_s, timeout_s)
        answers = await self.backend.resolve(
            self.snapshot, path, source.text, [(s.line, s.column) for s in asked], timeout_s=limit
        )
        found = self._places(path, source, asked, answers)
        if len(found) == 1 or (found and self.ambiguity == "first"):
            place = next(iter(found))
            note = f" (1 of {len(found)} definitions)" if len(found) > 1 else ""
            return JumpResult(Status.OK, cut(self._show(place, note), count_tokens, budget), (place,))
        if found and len(asked) == 1:  # one use, several definitions: branches, or a name bound twice
            shown = "\n\n".join(self._show(place, "") for place in found)
            return JumpResult(Status.OK, cut(shown, count_tokens, budget), tuple(found))
        if found:
            return self._several(name, path, source, found, count_tokens, budget)
        return _nothing(name, path, answers)

    def _places(
        self, path: str, source: Source, sites: Sequence[Occurrence], answers: Sequence[Answer]
    ) -> dict[Place, tuple[int, Occurrence]]:
        """Distinct definitions in the repository, each with the first use that leads to it."""
        found: dict[Place, tuple[int, Occurrence]] = {}
        for number, (site, answer) in enumerate(zip(sites, answers, strict=True), 1):
            for target in answer.targets:
                place = self.place_of(target)
                if place is not None:
                    found.setdefault(place, (number, site))
        return found

    def place_of(self, target: Target) -> Place | None:
        """The whole definition at a target; `None` outside the repository or on an import line."""
        if not target.path:
            return None
        try:
            path, real = self.snapshot.locate(target.path)
            source = read_source(real)
        except BadPath:
            return None
        if target.kind == "module":
            return Place(path, "", 1, len(source.lines))
        definition = source.at(target.line)
        if definition is None and target.kind in ("function", "class"):
            definition = source.innermost(target.line)
        if definition is not None:
            return Place(path, definition.qualname, definition.start, definition.end)
        if target.kind == "param" and (owner := source.innermost(target.line)):
            return Place(path, owner.qualname, owner.start, owner.end)
        start, end, node = source.statement(target.line)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            return None  # an import that leads nowhere is not a definition
        return Place(path, "<statement>", start, end)

    def _show(self, place: Place, note: str) -> str:
        source = read_source(self.snapshot.root / place.path)
        definition = self._definition(source, place)
        long_class = definition is not None and definition.kind == "class" and place.end - place.start >= CLASS_LINES
        if not place.qualname or long_class:
            code, note = source.outline(definition), note + ", outline"
        else:
            code = source.code(place.start, place.end)
        name = f"::{place.qualname}" if place.qualname and place.qualname != "<statement>" else ""
        head = f"{place.path}{name}, lines {place.start}-{place.end}{note}\n"
        return head + code

    def _definition(self, source: Source, place: Place) -> Definition | None:
        return next((d for d in source.definitions if (d.start, d.qualname) == (place.start, place.qualname)), None)

    def _several(
        self,
        name: str,
        path: str,
        source: Source,
        found: dict[Place, tuple[int, Occurrence]],
        count_tokens: CountTokens,
        budget: int,
    ) -> JumpResult:
        rows = [f"{name} in {path} has {len(found)} different definitions; call again with one index:"]
        for place, (number, site) in found.items():
            use = source.lines[site.line - 1].strip()[:100]
            rows.append(f"index {number}: {use!r} (line {site.line}) -> {place.location} line {place.start}")
        return JumpResult(Status.AMBIGUOUS, cut("\n".join(rows), count_tokens, budget), tuple(found))


def cut(text: str, count_tokens: CountTokens, budget: int) -> str:
    """The text within `budget` tokens, cut at a line's end and marked. A budget too small gives the mark alone."""
    if count_tokens(text) <= budget:
        return text
    lines = text.split("\n")

    def kept(n: int) -> str:
        return "\n".join([*lines[:n], f"[{len(lines) - n} more lines cut]"])

    low, high = 0, len(lines) - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count_tokens(kept(middle)) <= budget else (low, middle - 1)
    return kept(low)


def _ends_with(written: str, prefix: str) -> bool:
    return written == prefix or written.endswith("." + prefix)


def _not_in_file(source: Source, name: str, path: str) -> JumpResult:
    near = difflib.get_close_matches(name, sorted(source.names()), n=3)
    hint = f" Did you mean {', '.join(near)}?" if near else ""
    broken = " The file has a syntax error." if source.broken else ""
    return JumpResult(Status.NOT_IN_FILE, f"Error: {name} is not used in {path}.{hint}{broken}")


def _nothing(name: str, path: str, answers: Sequence[Answer]) -> JumpResult:
    outside = next((t for a in answers for t in a.targets if not t.path and t.full_name), None)
    if outside is not None:
        what = outside.full_name
        return JumpResult(Status.EXTERNAL, f"{name} is defined outside the repository: {what} ({outside.kind}).")
    errors = [a.error for a in answers if a.error]
    if "timeout" in errors:
        return JumpResult(Status.TIMEOUT, f"Error: resolving {name} in {path} took too long.")
    if errors and len(errors) == len(answers):
        return JumpResult(Status.INTERNAL, f"Error: the resolver failed on {name} in {path}.")
    return JumpResult(Status.UNRESOLVED, f"The definition of {name} used in {path} cannot be located.")
