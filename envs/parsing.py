"""Tool calls in the policy's text, by template family.

Nothing here raises on what a model wrote: text that looks like a call but cannot be read becomes a
`ToolCall` with `error`, which the environment answers with an observation.

Families: `hermes` (Hermes, Qwen: JSON in `<tool_call>` tags), `llama` (Llama 3: the whole turn is
JSON, maybe after `<|python_tag|>`, several joined by `;`) and `json` (a JSON object with `name` and
`arguments`, bare or in a fenced block: for models whose template knows no tools).
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from typing import Any

from envs.base import ToolCall

FAMILIES = ("hermes", "llama", "json")
MAX_CALL_CHARS = 65_536
"""A longer call is refused unread: nobody means it, and parsing it would block the loop."""
PREVIEW_CHARS = 200

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_PYTHON_TAG = "<|python_tag|>"
_FENCE = re.compile(r"```(?:json|tool_call)?[ \t]*\n(.*?)```", re.DOTALL)
_LOOKS_LIKE_CALL = re.compile(r"""\{\s*["'](?:name|function)["']\s*:""")


def detect_family(chat_template: str) -> str:
    """The family whose call syntax a chat template teaches; `json` when it teaches none."""
    if _OPEN in chat_template:
        return "hermes"
    if _PYTHON_TAG in chat_template or "ipython" in chat_template:
        return "llama"
    return "json"


def parse_tool_calls(text: str, family: str) -> tuple[ToolCall, ...]:
    """The calls of one turn, in order; those inside a thinking block are not calls.

    Args:
        text: the policy's turn, control tokens such as `<|im_end|>` removed.
        family: one of `FAMILIES`.

    Raises:
        ValueError: the family is unknown (a mistake of the caller, never of the model).
    """
    if family not in FAMILIES:
        raise ValueError(f"unknown tool call family {family!r}; known: {', '.join(FAMILIES)}")
    text = visible_text(text)
    payloads = {"hermes": _hermes, "llama": _llama, "json": _plain}[family](text)
    return tuple(_call(payload, i) for i, payload in enumerate(payloads))


def visible_text(text: str) -> str:
    """The turn without its thinking block, closed or not."""
    head, end, tail = text.rpartition("</think>")
    if end:
        text = head.partition("<think>")[0] + tail
    return text.partition("<think>")[0]


def _hermes(text: str) -> Iterator[str]:
    """Bodies of the tags; the closing tag may be missing at the end of the turn."""
    position = text.find(_OPEN)
    while position >= 0:
        start = position + len(_OPEN)
        end = _object_end(text, start)  # a closing tag inside a JSON string does not close the call
        if end is None:
            close, again = text.find(_CLOSE, start), text.find(_OPEN, start)
            ends = [e for e in (close, again) if e >= 0]
            end = min(ends, default=len(text))
        body = text[start:end].strip()
        if body or not text.startswith(_OPEN, end):  # `<tool_call><tool_call>` opens one call
            yield body
        position = text.find(_OPEN, end)


def _llama(text: str) -> Iterator[str]:
    body = text.partition(_PYTHON_TAG)[2] if _PYTHON_TAG in text else text
    body = body.strip()
    if not body.startswith("{") and _PYTHON_TAG not in text:
        return
    if _PYTHON_TAG not in text and not _LOOKS_LIKE_CALL.match(body):
        return
    while body:
        end = _object_end(body, 0)
        if end is None:
            yield body
            return
        yield body[:end]
        body = body[end:].lstrip().removeprefix(";").lstrip()
        if body and not body.startswith("{"):
            return


def _plain(text: str) -> Iterator[str]:
    bodies = [m[1].strip() for m in _FENCE.finditer(text) if _LOOKS_LIKE_CALL.match(m[1].strip())]
    if bodies:
        yield from bodies
        return
    position = 0
    while match := _LOOKS_LIKE_CALL.search(text, position):
        end = _object_end(text, match.start())
        if end is None:
            yield text[match.start() :].strip()
            return
        yield text[match.start() : end]
        position = end


def _object_end(text: str, start: int) -> int | None:
    """Where the JSON object that starts at `start` (after spaces) ends; `None` when none does."""
    while start < len(text) and text[start].isspace():
        start += 1
    if start >= len(text) or text[start] != "{":
        return None
    try:
        return json.JSONDecoder().raw_decode(text[: start + MAX_CALL_CHARS], start)[1]
    except (ValueError, RecursionError):
        return None


def _call(payload: str, index: int) -> ToolCall:
    call_id = f"call_{index}"
    try:
        value = _read(payload)
    except _Unreadable as error:
        return ToolCall("", call_id=call_id, error=f"{error}: {preview(payload)}")
    if not isinstance(value, dict):
        return ToolCall("", call_id=call_id, error=f"a call must be a JSON object, not {_kind(value)}")
    inner = value.get("function")
    if isinstance(inner, dict):
        value = inner
    name = value.get("name", value.get("function"))
    if not isinstance(name, str) or not name:
        return ToolCall("", call_id=call_id, error='a call needs "name", the name of a tool')
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = _read(arguments)
        except _Unreadable as error:
            return ToolCall(name, call_id=call_id, error=f"arguments: {error}: {preview(arguments)}")
    if not isinstance(arguments, dict) or not all(isinstance(k, str) for k in arguments):
        return ToolCall(name, call_id=call_id, error=f"arguments must be a JSON object, not {_kind(arguments)}")
    return ToolCall(name, arguments, call_id=call_id)


class _Unreadable(ValueError):
    """Why a payload is no JSON value."""


def _read(payload: str) -> Any:
    """JSON; failing that a Python literal, because models write single quotes and trailing commas."""
    if not payload.strip():
        raise _Unreadable("the call is empty")
    if len(payload) > MAX_CALL_CHARS:
        raise _Unreadable(f"the call has {len(payload)} characters; at most {MAX_CALL_CHARS} are read")
    try:
        return json.loads(payload, parse_constant=_refuse_constant, strict=False)
    except _Unreadable:
        raise
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", type(error).__name__)
    try:
        return ast.literal_eval(payload.strip())
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise _Unreadable(f"the call is not valid JSON ({reason})") from None


def _refuse_constant(name: str) -> Any:
    raise _Unreadable(f"{name} is not a JSON value")


def _kind(value: Any) -> str:
    names = {type(None): "null", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__)


def preview(text: str) -> str:
    """The start of a text the model wrote: echoing all of it would fill the next prompt."""
    text = " ".join(text[: PREVIEW_CHARS * 2].split())
    return repr(text if len(text) <= PREVIEW_CHARS else text[:PREVIEW_CHARS] + "...")
