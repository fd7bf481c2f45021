"""Gold locations from a patch: which functions of the shown code a fix touches."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from envs.repo_navigator.source import Source

_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_TEST_PARTS = frozenset({"test", "tests", "testing", "doc", "docs", "examples", "benchmarks"})


@dataclass
class Hunk:
    """Changed lines: (sign, text) with sign ' ', '-' or '+'."""

    old_start: int
    old_count: int
    lines: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class FilePatch:
    """Changes of one file; a path is `None` where the file does not exist on that side."""

    old: str | None
    new: str | None
    hunks: list[Hunk] = field(default_factory=list)


def parse_patch(text: str) -> list[FilePatch]:
    """Reads a unified diff, git's headers (renames, binary files) included.

    Raises:
        ValueError: a hunk ends before its announced number of lines.
    """
    files: list[FilePatch] = []
    lines = text.replace("\r\n", "\n").split("\n")
    i = 0
    while i < len(lines):
        line = lines[i]
        if line.startswith("diff --git "):
            match = re.match(r"diff --git a/(.+) b/(.+)$", line)
            files.append(FilePatch(match[1], match[2]) if match else FilePatch(None, None))
        elif line.startswith("--- ") and i + 1 < len(lines) and lines[i + 1].startswith("+++ "):
            if not files or files[-1].hunks:
                files.append(FilePatch(None, None))
            files[-1].old, files[-1].new = _side(line), _side(lines[i + 1])
            i += 1
        elif files and (match := _HUNK.match(line)):
            hunk, i = _read_hunk(match, lines, i + 1)
            files[-1].hunks.append(hunk)
            continue
        i += 1
    return files


def reversed_patch(files: list[FilePatch]) -> list[FilePatch]:
    """The patch that undoes it: its pre-image is the other's post-image."""
    flip = {"+": "-", "-": "+", " ": " "}
    result = []
    for patch in files:
        shift, hunks = 0, []
        for hunk in patch.hunks:
            lines = [(flip[s], t) for s, t in hunk.lines]
            added = sum(s == "+" for s, _ in hunk.lines)
            removed = sum(s == "-" for s, _ in hunk.lines)
            start = hunk.old_start + shift + (hunk.old_count == 0) - (hunk.old_count - removed + added == 0)
            hunks.append(Hunk(start, hunk.old_count - removed + added, lines))
            shift += added - removed
        result.append(FilePatch(patch.new, patch.old, hunks))
    return result


def apply_patch(text: str, patch: FilePatch) -> str:
    """The post-image of one file.

    Raises:
        ValueError: the text is not the patch's pre-image.
    """
    lines = text.replace("\r\n", "\n").split("\n")
    result: list[str] = []
    position = 0
    for hunk in patch.hunks:
        start = hunk.old_start - 1 if hunk.old_count else hunk.old_start
        result += lines[position:start]
        position = start
        for sign, content in hunk.lines:
            if sign == "+":
                result.append(content)
                continue
            if position >= len(lines) or lines[position] != content:
                raise ValueError(f"{patch.old}: line {position + 1} is not what the patch expects")
            if sign == " ":
                result.append(content)
            position += 1
    return "\n".join(result + lines[position:])


def gold_locations(files: list[FilePatch], read: Callable[[str], str | None]) -> tuple[str, ...]:
    """Sorted ids of what a patch changes in its pre-image.

    A changed line belongs to its innermost function; inserted lines to the function around the
    insertion point. Functions that the patch adds do not exist yet and are no target. Tests,
    documentation and non-Python files are left out. When no function is touched, the ids are the
    changed files themselves.

    Args:
        files: the fix. For a patch that plants the bug, give `reversed_patch` and read the buggy code.
        read: text of a pre-image file; `None` when it is missing.
    """
    functions: set[str] = set()
    touched: set[str] = set()
    for patch in files:
        if patch.old is None or not patch.hunks or not is_source_path(patch.old):
            continue
        text = read(patch.old)
        if text is None:
            continue
        touched.add(patch.old)
        source = Source(text)
        for line, inserted in _changes(patch):
            name = _function_at(source, line, inserted)
            if name:
                functions.add(f"{patch.old}::{name}")
    return tuple(sorted(functions or touched))


def is_source_path(path: str) -> bool:
    """Whether a path is code a fix may be about: Python, and neither test nor documentation."""
    pure = PurePosixPath(path)
    name = pure.name
    test = name.startswith("test_") or name.endswith("_test.py") or name in ("conftest.py", "tests.py")
    return pure.suffix == ".py" and not test and not _TEST_PARTS & {p.lower() for p in pure.parts[:-1]}


def _read_hunk(match: re.Match[str], lines: list[str], i: int) -> tuple[Hunk, int]:
    old = int(match[2]) if match[2] is not None else 1
    new = int(match[4]) if match[4] is not None else 1
    hunk = Hunk(int(match[1]), old)
    while old > 0 or new > 0:
        if i >= len(lines):
            raise ValueError("the patch ends inside a hunk")
        sign, content = (lines[i][:1] or " "), lines[i][1:]
        i += 1
        if sign == "\\":
            continue
        if sign not in " +-":
            raise ValueError(f"line {i} of the patch is no diff line: {lines[i - 1][:60]!r}")
        hunk.lines.append((sign, content))
        old -= sign != "+"
        new -= sign != "-"
    return hunk, i


def _side(header: str) -> str | None:
    path = header[4:].partition("\t")[0].strip().strip('"')
    if path == "/dev/null":
        return None
    return path[2:] if path[:2] in ("a/", "b/") else path


def _changes(patch: FilePatch) -> Iterator[tuple[int, str | None]]:
    """(line, None) for a removed line; (line before, first inserted text) for a pure insertion."""
    for hunk in patch.hunks:
        line = hunk.old_start if hunk.old_count else hunk.old_start + 1
        previous = " "
        pending: str | None = None
        for sign, content in [*hunk.lines, (" ", "")]:
            if sign == "+":
                if previous == " " and pending is None and content.strip():
                    pending = content
                continue
            if pending is not None and sign == " ":
                yield line - 1, pending
            if sign == "-":
                yield line, None
            pending, previous = None, sign
            line += 1


def _function_at(source: Source, line: int, inserted: str | None) -> str | None:
    covering = []
    for d in source.definitions:
        if d.kind != "function" or not d.start <= line <= d.end:
            continue
        if inserted is not None and line == d.end:
            own = source.lines[d.line - 1]
            if _indent(inserted) <= _indent(own):
                continue  # inserted after the function, not into it
        covering.append(d)
    best = min(covering, key=lambda d: (d.end - d.start, -d.start), default=None)
    return best.qualname if best else None


def _indent(line: str) -> int:
    line = line.expandtabs()
    return len(line) - len(line.lstrip())


def overlay_of(files: list[FilePatch], read: Callable[[str], str | None]) -> Mapping[str, str]:
    """Post-image texts of the Python files a patch changes, by new path."""
    result = {}
    for patch in files:
        if patch.new is not None and patch.new.endswith((".py", ".pyi")) and patch.hunks:
            before = read(patch.old) if patch.old is not None else ""
            if before is None:
                raise ValueError(f"the patch changes {patch.old}, which the repository does not have")
            result[patch.new] = apply_patch(before, patch)
    return result
