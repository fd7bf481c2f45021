"""Python source as text: decoding, names in code, and whole definitions. Nothing is executed.

Lines are 1-based and split at ``\\n``, ``\\r\\n`` and ``\\r`` only, as Python and jedi do;
`str.splitlines` also splits at form feeds and would shift every line after one.
"""

from __future__ import annotations

import ast
import asyncio
import io
import keyword
import re
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

_DEF = re.compile(r"^(\s*)(async\s+def|def|class)\s+(\w+)")
_LARGE_BYTES = 30_000
_NAME = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True, slots=True)
class Definition:
    """A function or class with its whole extent."""

    qualname: str
    """`Class.method`, `outer.inner`."""
    kind: Literal["function", "class"]
    line: int
    """Of `def` or `class`."""
    start: int
    """First line, decorators included."""
    end: int
    decorators: tuple[str, ...] = ()
    """Last part of each decorator's name: `setter` for `@size.setter`."""


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A name in code, 1-based line and 0-based column in characters."""

    line: int
    column: int
    prefix: str
    """The dotted text before it: `self.a` for `c` in `self.a.c`."""


class Source:
    """One file, parsed once."""

    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n").replace("\r", "\n").removeprefix("\ufeff")
        self.lines: Sequence[str] = self.text.split("\n")
        self.tree = _parse(self.text)
        self.definitions: tuple[Definition, ...] = tuple(
            _from_tree(self.tree) if self.tree is not None else _from_indentation(self.lines)
        )

    @property
    def broken(self) -> bool:
        """Whether the file has syntax errors; definitions then come from indentation."""
        return self.tree is None

    def at(self, line: int) -> Definition | None:
        """The definition whose name is on a line: the getter of a property, the implementation of an overload."""
        found = next((d for d in self.definitions if d.line == line), None)
        if found is None:
            return None
        same = [d for d in self.definitions if d.qualname == found.qualname and d.kind == found.kind]
        if {"setter", "deleter"} & set(found.decorators):
            return next((d for d in same if not {"setter", "deleter"} & set(d.decorators)), found)
        if "overload" in found.decorators:
            return next((d for d in same if "overload" not in d.decorators), found)
        return found

    def innermost(self, line: int) -> Definition | None:
        """The smallest definition that covers a line."""
        covering = [d for d in self.definitions if d.start <= line <= d.end]
        return min(covering, key=lambda d: (d.end - d.start, -d.start), default=None)

    def statement(self, line: int) -> tuple[int, int, ast.stmt | None]:
        """First and last line of the smallest statement on a line, and its node where the file parses."""
        if self.tree is None:
            return line, line, None
        nodes = [n for n in ast.walk(self.tree) if isinstance(n, ast.stmt) and n.lineno <= line <= (n.end_lineno or 0)]
        if not nodes:
            return line, line, None
        node = min(nodes, key=lambda n: (n.end_lineno or 0) - n.lineno)
        return node.lineno, node.end_lineno or node.lineno, node

    def code(self, start: int, end: int) -> str:
        return "\n".join(self.lines[start - 1 : end])

    def outline(self, definition: Definition | None) -> str:
        """A class (or, with `None`, the module) as header, docstring and signatures of what it holds."""
        if self.tree is None:
            return "" if definition is None else self.lines[definition.line - 1]
        node: ast.AST = self.tree
        parts: list[str] = []
        if definition is not None:
            node = next(n for n in ast.walk(self.tree) if isinstance(n, ast.ClassDef) and n.lineno == definition.line)
            first = node.body[0].lineno  # type: ignore[attr-defined]
            parts.append(self.code(definition.start, max(definition.line, first - 1)))
        body = node.body  # type: ignore[attr-defined]
        if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            parts.append(self.code(body[0].lineno, body[0].end_lineno or body[0].lineno))
        for item in body:
            if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                start = min([d.lineno for d in item.decorator_list], default=item.lineno)
                stop = max(item.lineno, item.body[0].lineno - 1)
                parts.append(self.code(start, stop).rstrip() + " ...")
        return "\n".join(parts)

    def occurrences(self, name: str) -> tuple[Occurrence, ...]:
        """Every use of a name in code, comments and strings left out, in source order."""
        return tuple(self._uses.get(name, ()))

    def names(self) -> frozenset[str]:
        """Identifiers in code, for did-you-mean."""
        return frozenset(self._uses)

    @cached_property
    def _uses(self) -> dict[str, list[Occurrence]]:
        tokens = [t for t in self._tokens() if t.type in (tokenize.NAME, tokenize.OP)]
        uses: dict[str, list[Occurrence]] = {}
        for i, token in enumerate(tokens):
            if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
                uses.setdefault(token.string, []).append(Occurrence(*token.start, _prefix(tokens, i)))
        return uses

    def _tokens(self) -> Iterator[tokenize.TokenInfo]:
        """Tokens up to the first error; after it, names found line by line."""
        last = 0
        try:
            for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
                last = max(last, token.end[0])
                yield token
        except (tokenize.TokenError, SyntaxError):  # IndentationError is a SyntaxError
            yield from self._loose_tokens(last + 1)

    def _loose_tokens(self, first: int) -> Iterator[tokenize.TokenInfo]:
        for number in range(first, len(self.lines) + 1):
            line = self.lines[number - 1]
            for match in _NAME.finditer(line.partition("#")[0]):
                start, end = (number, match.start()), (number, match.end())
                yield tokenize.TokenInfo(tokenize.NAME, match[0], start, end, line)


def read_source(path: Path) -> Source:
    """Reads a file by its coding cookie; undecodable bytes become replacement characters.

    Raises:
        OSError: the file cannot be read.
    """
    stat = path.stat()
    return _read(path, stat.st_mtime_ns, stat.st_size)


async def load_source(path: Path) -> Source:
    """`read_source` that keeps the event loop free while a large file is parsed."""
    if path.stat().st_size < _LARGE_BYTES:
        return read_source(path)

    def indexed() -> Source:
        source = read_source(path)
        source.names()
        return source

    return await asyncio.to_thread(indexed)


@lru_cache(maxsize=256)
def _read(path: Path, mtime_ns: int, size: int) -> Source:
    raw = path.read_bytes()
    try:
        encoding = tokenize.detect_encoding(io.BytesIO(raw).readline)[0]
    except (SyntaxError, LookupError):  # an unknown or contradictory cookie
        encoding = "utf-8"
    return Source(raw.decode(encoding, errors="replace"))


def _parse(text: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _from_tree(tree: ast.Module) -> Iterator[Definition]:
    stack: list[tuple[ast.AST, str]] = [(tree, "")]
    while stack:
        node, scope = stack.pop()
        children = []
        for child in ast.iter_child_nodes(node):
            inner = scope
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                inner = f"{scope}.{child.name}" if scope else child.name
                start = min([d.lineno for d in child.decorator_list], default=child.lineno)
                yield Definition(
                    inner,
                    "class" if isinstance(child, ast.ClassDef) else "function",
                    child.lineno,
                    start,
                    child.end_lineno or child.lineno,
                    tuple(filter(None, map(_decorator, child.decorator_list))),
                )
            children.append((child, inner))
        stack.extend(reversed(children))


def _decorator(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _from_indentation(lines: Sequence[str]) -> Iterator[Definition]:
    """Definitions of a file that does not parse: a block ends where indentation falls back."""
    scopes: list[tuple[int, str]] = []
    for i, line in enumerate(lines):
        match = _DEF.match(line)
        if not match:
            continue
        indent = len(match[1].expandtabs())
        scopes = [s for s in scopes if s[0] < indent]
        qualname = ".".join([*(s[1] for s in scopes), match[3]])
        scopes.append((indent, match[3]))
        end = i
        for j in range(i + 1, len(lines)):
            body = lines[j]
            if body.strip() and len(body) - len(body.lstrip()) <= len(match[1]) and not body.lstrip().startswith(")"):
                break
            end = j if body.strip() else end
        start = i
        while start > 0 and lines[start - 1].startswith(match[1] + "@"):
            start -= 1
        yield Definition(qualname, "class" if match[2] == "class" else "function", i + 1, start + 1, end + 1)


def _prefix(tokens: Sequence[tokenize.TokenInfo], i: int) -> str:
    parts: list[str] = []
    while i >= 2 and tokens[i - 1].string == "." and tokens[i - 2].type == tokenize.NAME:
        parts.insert(0, tokens[i - 2].string)
        i -= 2
    return ".".join(parts)
