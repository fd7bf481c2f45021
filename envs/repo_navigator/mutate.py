"""Small bugs by editing the syntax tree's own places in the text: everything else stays byte for byte."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from envs.repo_navigator.source import Definition, Source

_COMPARE: dict[type[ast.cmpop], tuple[str, str, str]] = {
    ast.Lt: ("<", "<=", "a value exactly at the limit is treated as if it were below it"),
    ast.LtE: ("<=", "<", "a value exactly at the limit is treated as if it were above it"),
    ast.Gt: (">", ">=", "a value exactly at the limit is treated as if it were above it"),
    ast.GtE: (">=", ">", "a value exactly at the limit is treated as if it were below it"),
    ast.Eq: ("==", "!=", "things that are equal are handled as different, and the other way round"),
    ast.NotEq: ("!=", "==", "things that differ are handled as equal, and the other way round"),
    ast.In: ("in", "not in", "known entries are handled as unknown, and the other way round"),
    ast.NotIn: ("not in", "in", "unknown entries are handled as known, and the other way round"),
    ast.Is: ("is", "is not", "a missing value is handled as present, and the other way round"),
    ast.IsNot: ("is not", "is", "a missing value is handled as present, and the other way round"),
}
_ARITHMETIC: dict[type[ast.operator], tuple[str, str, str]] = {
    ast.Add: ("+", "-", "the result is too small, as if a part were taken away"),
    ast.Sub: ("-", "+", "the result is too large, as if a part were counted twice"),
    ast.Mult: ("*", "+", "the result has the wrong size"),
    ast.FloorDiv: ("//", "%", "the result is a remainder and not a quotient"),
    ast.Mod: ("%", "//", "the result is a quotient and not a remainder"),
}


@dataclass(frozen=True, slots=True)
class Mutation:
    """One planted bug."""

    definition: Definition
    line: int
    symptom: str
    text: str
    """The whole file with the bug."""


def mutations(source: Source, candidates: Iterable[tuple[Definition, Edit]] | None = None) -> Iterator[Mutation]:
    """Every bug that can be planted in the functions of a file; each result parses and differs.

    Args:
        candidates: edits to try, in this order; all of the file when not given. A try parses the whole file.
    """
    for definition, (start, end, old, new, symptom) in _candidates(source) if candidates is None else candidates:
        text = _replace(source, start, end, old, new)
        if text is not None and text != source.text:
            yield Mutation(definition, start[0], symptom, text)


def pick(source: Source, rng: random.Random) -> Mutation | None:
    """One bug, each function equally likely. Only edits that are drawn are tried."""
    by_name: dict[str, list[tuple[Definition, Edit]]] = {}
    for definition, edit in _candidates(source):
        by_name.setdefault(definition.qualname, []).append((definition, edit))
    names = rng.sample(sorted(by_name), len(by_name))
    drawn = (candidate for name in names for candidate in rng.sample(by_name[name], len(by_name[name])))
    return next(mutations(source, drawn), None)


Edit = tuple[tuple[int, int], tuple[int, int], str, str, str]


def _candidates(source: Source) -> Iterator[tuple[Definition, Edit]]:
    for node in ast.walk(source.tree) if source.tree is not None else ():
        for edit in _edits(node, source):
            definition = _function_of(source, edit[0][0])
            if definition is not None:
                yield definition, edit


def _edits(node: ast.AST, source: Source) -> Iterator[Edit]:
    """(start, end, text to find between them, its replacement, symptom)."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARE:
        yield (*_gap(node.left, node.comparators[0], source), *_COMPARE[type(node.ops[0])])
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC and not _is_text(node):
        yield (*_gap(node.left, node.right, source), *_ARITHMETIC[type(node.op)])
    elif isinstance(node, ast.BoolOp) and len(node.values) == 2:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        yield (
            *_gap(node.values[0], node.values[1], source),
            old,
            new,
            "two conditions are joined wrongly: one alone decides",
        )
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        start, end = _span(node, source)
        yield start, end, source_text(source, start, end), "return None", "the result is always empty"


def _is_text(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    return any(
        isinstance(s, ast.JoinedStr) or (isinstance(s, ast.Constant) and isinstance(s.value, str)) for s in sides
    )


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _function_of(source: Source, line: int) -> Definition | None:
    covering = [d for d in source.definitions if d.kind == "function" and d.line < line <= d.end]
    return min(covering, key=lambda d: d.end - d.start, default=None)


def _column(source: Source, line: int, utf8_offset: int) -> int:
    return len(source.lines[line - 1].encode()[:utf8_offset].decode())


def _span(node: ast.stmt | ast.expr, source: Source) -> tuple[tuple[int, int], tuple[int, int]]:
    last = node.end_lineno or node.lineno
    return (
        (node.lineno, _column(source, node.lineno, node.col_offset)),
        (last, _column(source, last, node.end_col_offset or 0)),
    )


def _gap(left: ast.expr, right: ast.expr, source: Source) -> tuple[tuple[int, int], tuple[int, int]]:
    return _span(left, source)[1], _span(right, source)[0]


def source_text(source: Source, start: tuple[int, int], end: tuple[int, int]) -> str:
    """The characters between two places."""
    first, last = _offset(source, start), _offset(source, end)
    return source.text[first:last]


def _offset(source: Source, place: tuple[int, int]) -> int:
    return sum(len(line) + 1 for line in source.lines[: place[0] - 1]) + place[1]


def _replace(source: Source, start: tuple[int, int], end: tuple[int, int], old: str, new: str) -> str | None:
    first, last = _offset(source, start), _offset(source, end)
    middle = source.text[first:last]
    if middle.count(old) != 1 or "#" in middle.replace(old, ""):
        return None
    text = source.text[:first] + middle.replace(old, new) + source.text[last:]
    try:
        ast.parse(text)
    except SyntaxError:
        return None
    return text
