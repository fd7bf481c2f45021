"""Call syntaxes and typed tools: nothing a model writes may raise, nothing a tool does may block."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.base import ToolCall
from envs.parsing import FAMILIES, detect_family, parse_tool_calls
from envs.tools import Tool, Toolbox

GOOD = '{"name": "jump", "arguments": {"symbol": "f", "file_path": "a.py"}}'
WANT = {"symbol": "f", "file_path": "a.py"}


def tagged(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


@pytest.mark.parametrize(
    "text",
    [
        tagged(GOOD),
        "I look it up.\n" + tagged(GOOD) + "\nthanks",
        tagged(GOOD.replace('"', "'")),
        tagged(GOOD.replace('"a.py"}', '"a.py",}')),
        tagged('{"name": "jump", "arguments": ' + json.dumps(json.dumps(WANT)) + "}"),
        "<tool_call>" + GOOD,
        "<tool_call><tool_call>" + GOOD + "</tool_call></tool_call>",
        tagged('{"function": {"name": "jump", "arguments": {"symbol": "\\u0066", "file_path": "a.py"}}}'),
        "<think>maybe " + tagged('{"name": "other", "arguments": {}}') + "</think>" + tagged(GOOD),
    ],
)
def test_calls_that_can_be_read(text: str) -> None:
    (call,) = parse_tool_calls(text, "hermes")
    assert (call.name, call.arguments, call.error) == ("jump", WANT, None)


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ('{"a": 1,, }', "not valid JSON"),
        ('{"name": "jump", "arguments": {"symbol": "x', "not valid JSON"),
        ("", "empty"),
        ("null", "not null"),
        ("[]", "not a list"),
        ("3", "not a number"),
        ('"x"', "not text"),
        ('{"arguments": {}}', '"name"'),
        ('{"name": "jump", "arguments": null}', "not null"),
        ('{"name": "jump", "arguments": []}', "not a list"),
        ('{"name": "jump", "arguments": {"n": NaN}}', "NaN"),
        ('{"name": "jump", "arguments": {"symbol": "' + "x" * 1_000_000 + '"}}', "65536"),
        ("{" * 50_000, "not valid JSON"),
    ],
)
def test_calls_that_cannot_be_read_say_why_in_few_words(body: str, part: str) -> None:
    (call,) = parse_tool_calls(tagged(body), "hermes")
    assert call.error is not None and part in call.error
    assert len(call.error) < 2000


def test_two_calls_one_bad_keep_their_order() -> None:
    calls = parse_tool_calls(tagged('{"a": 1,, }') + tagged(GOOD), "hermes")
    assert [c.error is None for c in calls] == [False, True]


def test_a_closing_tag_inside_a_string_does_not_close() -> None:
    (call,) = parse_tool_calls(tagged('{"name": "jump", "arguments": {"symbol": "</tool_call>"}}'), "hermes")
    assert call.arguments == {"symbol": "</tool_call>"}


@pytest.mark.parametrize("text", ["<think>" + tagged(GOOD), "<think>" + tagged(GOOD) + "</think>the answer"])
def test_a_call_in_a_thinking_block_is_thought_not_called(text: str) -> None:
    assert parse_tool_calls(text, "hermes") == ()


def test_llama_and_plain_json() -> None:
    llama = GOOD.replace("arguments", "parameters")
    for text in (llama, "<|python_tag|>" + llama, f"{llama}; {llama}"):
        assert parse_tool_calls(text, "llama")[0].arguments == WANT
    assert len(parse_tool_calls(f"{llama}; {llama}", "llama")) == 2
    assert parse_tool_calls("The answer is {1, 2}", "llama") == ()
    for text in (GOOD, "first:\n```json\n" + GOOD + "\n```", "I call " + GOOD):
        (call,) = parse_tool_calls(text, "json")
        assert call.arguments == WANT
    assert parse_tool_calls('{"answer": 3}', "json") == ()
    assert parse_tool_calls(GOOD[:-5], "json")[0].error


def test_families_are_told_from_templates() -> None:
    assert detect_family("... <tool_call>\n{...}</tool_call>") == "hermes"
    assert detect_family("{%- if message.role == 'ipython' %}") == "llama"
    assert detect_family("{% for m in messages %}{{ m.content }}{% endfor %}") == "json"
    with pytest.raises(ValueError, match="hermes"):
        parse_tool_calls("", "qwen")


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="{}[]\"':,<tool_cal/>nme1 \\\n", max_size=80), st.sampled_from(FAMILIES))
def test_no_text_raises(text: str, family: str) -> None:
    for call in parse_tool_calls("<tool_call>" + text, family):
        assert isinstance(call.arguments, dict)


def search(query: str, limit: int = 5, mode: Literal["all", "any"] = "all", tags: list[str] | None = None) -> str:
    """Search the notes.

    Args:
        query: Words to look for,
            in any order.
        limit: How many notes.
    """
    return f"{query}/{limit}/{mode}/{tags}"


def test_schema_from_signature_and_docstring() -> None:
    function = Tool.of(search).schema["function"]
    assert function["description"] == "Search the notes."
    assert function["parameters"]["required"] == ["query"]
    assert function["parameters"]["properties"] == {
        "query": {"type": "string", "description": "Words to look for, in any order."},
        "limit": {"type": "integer", "description": "How many notes."},
        "mode": {"type": "string", "enum": ["all", "any"]},
        "tags": {"type": "array", "items": {"type": "string"}, "nullable": True},
    }
    with pytest.raises(TypeError, match="annotation"):
        Tool.of(lambda x: x)


@pytest.mark.parametrize(
    ("arguments", "status", "part"),
    [
        ({"query": "a"}, "ok", "a/5/all/None"),
        ({"query": "a", "limit": "2"}, "ok", "a/2/"),
        ({"query": "a", "limit": 2.0}, "ok", "a/2/"),
        ({"query": "a", "limit": True}, "bad_arguments", "integer"),
        ({"query": "a", "limit": 1.5}, "bad_arguments", "integer"),
        ({"query": 3}, "bad_arguments", "string"),
        ({"query": "a", "mode": "some"}, "bad_arguments", "'any'"),
        ({"query": "a", "tags": [1]}, "bad_arguments", "tags[0]"),
        ({}, "bad_arguments", "query"),
        ({"query": "a", "limits": 3}, "bad_arguments", "'limit'"),
    ],
)
def test_arguments_are_checked(arguments: dict, status: str, part: str) -> None:
    result = asyncio.run(Toolbox([search]).call(ToolCall("search", arguments)))
    assert result.status == status and part in result.content


def test_unknown_tool_names_the_nearest() -> None:
    result = asyncio.run(Toolbox([search]).call(ToolCall("serch", {})))
    assert result.status == "unknown_tool" and "search" in result.content


def sleeper() -> str:
    """Sleep."""
    time.sleep(30)
    return ""


def half() -> object:
    """Say half."""
    yield "half"
    time.sleep(30)


async def never() -> str:
    """Wait."""
    await asyncio.Event().wait()
    return ""


def breaks() -> str:
    """Fail."""
    raise KeyError("gone")


def test_stuck_tools_hold_up_nobody() -> None:
    async def main() -> list:
        box = Toolbox([sleeper, half, never, breaks, search], timeout_s=0.3)
        names = ["sleeper", "half", "never", "breaks"]
        stuck = [box.call(ToolCall(n)) for n in names]
        return await asyncio.gather(*stuck, *(box.call(ToolCall("search", {"query": "q"})) for _ in range(7)))

    results = asyncio.run(asyncio.wait_for(main(), 5))
    assert [r.status for r in results] == ["timeout", "timeout", "timeout", "error"] + ["ok"] * 7
    assert "half" in results[1].content and "gone" in results[3].content
