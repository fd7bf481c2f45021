"""Tools as typed Python callables: the schema comes from the signature and the docstring.

    async def search(query: str, limit: int = 5) -> str:
        '''Search the notes.

        Args:
            query: Words to look for.
            limit: How many notes.
        '''

`Toolbox([search])` gives the JSON schemas for the prompt and runs calls. Whatever a call does
(unknown name, wrong arguments, an exception, a hang) becomes a `ToolResult`, an observation for the
policy; nothing blocks the event loop. A tool may be sync (it runs in a daemon thread), async, or a
generator of text: then what it yielded before a timeout is kept.
"""

from __future__ import annotations

import asyncio
import difflib
import inspect
import re
import threading
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin

from envs.base import ToolCall
from envs.parsing import detect_family, parse_tool_calls

__all__ = ["Tool", "ToolArgumentError", "ToolResult", "Toolbox", "detect_family", "parse_tool_calls"]

Status = Literal["ok", "bad_arguments", "unknown_tool", "parse_error", "timeout", "error"]
_JSON_TYPES: dict[type, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_ARG = re.compile(r"^(\w+)(?:\s*\([^)]*\))?:\s*(.*)$")


class ToolArgumentError(ValueError):
    """The arguments of a call do not fit the tool's signature; the text tells the policy how."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call gave: always text for the policy."""

    status: Status
    content: str

    @property
    def ok(self) -> bool:
        return self.status == "ok"


@dataclass(frozen=True)
class Tool:
    """A callable and what the policy is told about it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments."""
    fn: Callable[..., Any]
    hidden: frozenset[str] = field(default_factory=frozenset)
    """Parameters that the environment fills in and the policy never sees."""

    @classmethod
    def of(cls, fn: Callable[..., Any], *, name: str | None = None, hidden: Iterable[str] = ()) -> Tool:
        """Reads a function's signature and docstring (Google style `Args:`).

        Raises:
            TypeError: a parameter has no annotation, or one that JSON cannot express.
        """
        hidden = frozenset(hidden)
        summary, notes = _docstring(fn)
        hints = typing.get_type_hints(fn)
        properties: dict[str, Any] = {}
        required = []
        for parameter in inspect.signature(fn).parameters.values():
            if parameter.name in hidden:
                continue
            if parameter.name not in hints:
                raise TypeError(f"tool {fn.__name__}: parameter {parameter.name!r} needs a type annotation")
            schema = _schema_of(hints[parameter.name], f"{fn.__name__}({parameter.name})")
            if parameter.name in notes:
                schema["description"] = notes[parameter.name]
            if parameter.default is inspect.Parameter.empty:
                required.append(parameter.name)
            properties[parameter.name] = schema
        return cls(
            name or fn.__name__,
            summary,
            {"type": "object", "properties": properties, "required": required},
            fn,
            hidden,
        )

    @property
    def schema(self) -> dict[str, Any]:
        """OpenAI's form, which chat templates take."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": dict(self.parameters)},
        }

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments with harmless spellings mended (`"2"` and `2.0` for an integer).

        Raises:
            ToolArgumentError: one is missing, unknown or of the wrong type.
        """
        properties: Mapping[str, Any] = self.parameters.get("properties", {})
        for name in arguments:
            if name not in properties:
                near = difflib.get_close_matches(name, properties, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; it takes {', '.join(properties) or 'nothing'}"
                raise ToolArgumentError(f"{self.name} has no argument {name[:60]!r}{hint}")
        missing = [n for n in self.parameters.get("required", ()) if n not in arguments]
        if missing:
            raise ToolArgumentError(f"{self.name} needs the argument {missing[0]!r}")
        return {name: _coerce(value, properties[name], f"{self.name}: {name}") for name, value in arguments.items()}


class Toolbox:
    """The tools of one episode."""

    def __init__(self, tools: Sequence[Callable[..., Any] | Tool], *, timeout_s: float = 30.0) -> None:
        made = [t if isinstance(t, Tool) else Tool.of(t) for t in tools]
        self._tools = {t.name: t for t in made}
        if len(self._tools) != len(made):
            raise ValueError(f"two tools have one name: {[t.name for t in made]}")
        self.timeout_s = timeout_s

    @property
    def schemas(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(t.schema for t in self._tools.values())

    async def call(
        self, call: ToolCall, *, hidden: Mapping[str, Any] | None = None, timeout_s: float | None = None
    ) -> ToolResult:
        """Runs one call. Never raises for what the policy wrote or a tool did; cancellation passes."""
        if call.error is not None:
            return ToolResult("parse_error", f"Error: {call.error}")
        tool = self._tools.get(call.name)
        if tool is None:
            near = difflib.get_close_matches(call.name, self._tools, n=1) or list(self._tools)
            return ToolResult("unknown_tool", f"Error: there is no tool {call.name[:60]!r}; use {', '.join(near)}")
        try:
            arguments = tool.check(call.arguments)
        except ToolArgumentError as error:
            return ToolResult("bad_arguments", f"Error: {error}")
        limit = self.timeout_s if timeout_s is None else min(timeout_s, self.timeout_s)
        parts: list[str] = []
        try:
            await asyncio.wait_for(_run(tool.fn, {**arguments, **(hidden or {})}, parts), limit)
        except TimeoutError:
            said = f" Output so far:\n{''.join(parts)}" if parts else ""
            return ToolResult("timeout", f"Error: {call.name} did not finish in {limit:g} s.{said}")
        except Exception as error:  # a tool's failure is an observation, by contract
            return ToolResult("error", f"Error: {call.name} failed: {type(error).__name__}: {str(error)[:500]}")
        return ToolResult("ok", "".join(parts))


async def _run(fn: Callable[..., Any], arguments: Mapping[str, Any], parts: list[str]) -> None:
    """Appends the tool's output to `parts` as it comes."""
    if inspect.isasyncgenfunction(fn):
        async for part in fn(**arguments):
            parts.append(str(part))
    elif inspect.iscoroutinefunction(fn):
        parts.append(str(await fn(**arguments)))
    else:
        value = await in_thread(lambda: _drain(fn(**arguments), parts))
        if inspect.isawaitable(value):
            value = await value
        if value is not None:
            parts.append(str(value))


def _drain(value: Any, parts: list[str]) -> Any:
    if not inspect.isgenerator(value):
        return value
    for part in value:
        parts.append(str(part))
    return None


async def in_thread(work: Callable[[], Any]) -> Any:
    """Runs blocking work in a daemon thread of its own.

    A thread cannot be killed: after a timeout it is abandoned, and being a daemon it does not hold
    up the end of the process as an executor's would. Work that must end belongs in a process.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if not future.done():
            future.set_exception(error) if error is not None else future.set_result(value)

    def body() -> None:
        value, error = None, None
        try:
            value = work()
        except BaseException as caught:  # handed to the awaiting side
            error = RuntimeError("the tool raised StopIteration") if isinstance(caught, StopIteration) else caught
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=body, daemon=True, name="hone-tool").start()
    return await future


def _docstring(fn: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Summary (everything before `Args:`) and the note of each argument."""
    text = inspect.getdoc(fn) or ""
    summary, _, rest = text.partition("\nArgs:\n")
    notes: dict[str, str] = {}
    last = None
    for line in rest.splitlines():
        if line and not line.startswith(" "):
            break
        match = _ARG.match(line.strip())
        if match and len(line) - len(line.lstrip()) <= 4:
            last = match[1]
            notes[last] = match[2]
        elif last and line.strip():
            notes[last] += " " + line.strip()
    return summary.strip(), notes


def _schema_of(hint: Any, where: str) -> dict[str, Any]:
    origin, args = get_origin(hint), get_args(hint)
    if hint in _JSON_TYPES:
        return {"type": _JSON_TYPES[hint]}
    if origin in (typing.Union, types.UnionType):
        inner = [a for a in args if a is not type(None)]
        if len(inner) == 1:
            schema = _schema_of(inner[0], where)
            return {**schema, "nullable": True} if len(inner) < len(args) else schema
        return {"anyOf": [_schema_of(a, where) for a in inner]}
    if origin is Literal:
        return {"type": _JSON_TYPES.get(type(args[0]), "string"), "enum": list(args)}
    if hint is list or origin in (list, Sequence):
        return {"type": "array", "items": _schema_of(args[0], where) if args else {}}
    if hint is dict or origin in (dict, Mapping):
        return {"type": "object"}
    if hint is Any:
        return {}
    raise TypeError(f"tool {where}: {hint!r} cannot be said in JSON; use str, int, float, bool, list, dict or Literal")


def _coerce(value: Any, schema: Mapping[str, Any], where: str) -> Any:
    kind = schema.get("type")
    if value is None and schema.get("nullable"):
        return None
    if kind == "integer":
        spelled = isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d{1,18}\s*", value)
        if spelled or (isinstance(value, float) and value.is_integer()):
            value = int(value)
    elif kind == "number" and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    expected: Any = {
        "string": str,
        "integer": int,
        "number": float,
        "boolean": bool,
        "array": list,
        "object": dict,
    }.get(str(kind), object)
    if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
        raise ToolArgumentError(f"{where} must be {kind}, not {type(value).__name__}")
    if "enum" in schema and value not in schema["enum"]:
        raise ToolArgumentError(f"{where} must be one of {', '.join(map(repr, schema['enum']))}")
    if kind == "array" and schema.get("items"):
        return [_coerce(v, schema["items"], f"{where}[{i}]") for i, v in enumerate(value)]
    return value
