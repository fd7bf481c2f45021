"""A model behind a chat completions API as the policy of an episode."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from envs.base import Action, ToolCall
from envs.episode import Policy
from envs.parsing import parse_tool_calls
from envs.tools import in_thread


def endpoint_policy(
    url: str,
    model: str,
    key: str = "",
    *,
    temperature: float = 0.0,
    max_tokens: int = 1024,
    tries: int = 4,
    more: Mapping[str, Any] | None = None,
) -> Policy:
    """A policy that asks a chat completions API.

    Args:
        url: base address, for example `http://localhost:8000/v1`.
        max_tokens: response budget of one turn.
        tries: requests of one turn; an endpoint that is away or busy is asked again after a pause.
        more: further settings of the request, for example `top_p`.
    """

    async def act(messages: Sequence[Any], tools: Sequence[Any]) -> Action:
        body = {"model": model, "messages": list(messages), "temperature": temperature, "max_tokens": max_tokens}
        body |= dict(more or {}) | ({"tools": list(tools)} if tools else {})
        answer = await _ask(url.rstrip("/") + "/chat/completions", key, body, tries)
        try:
            choice = answer["choices"][0]
            message = choice["message"]
        except (KeyError, IndexError, TypeError) as error:
            raise EndpointError(f"{url} answered without choices: {str(answer)[:200]}") from error
        text = message.get("content") or ""
        calls = tuple(_call(c) for c in message.get("tool_calls") or ())
        if tools and not calls:
            calls = parse_tool_calls(text, "hermes") or parse_tool_calls(text, "json")
        return Action(text, calls, "length" if choice.get("finish_reason") == "length" else "stop")

    return act


class EndpointError(RuntimeError):
    """The endpoint refused, or cannot be reached."""


async def _ask(url: str, key: str, body: Mapping[str, Any], tries: int) -> Any:
    for attempt in range(tries):
        try:
            return await in_thread(lambda: _post(url, key, body))
        except urllib.error.HTTPError as error:
            said = f"{url}: {error.code} {error.reason}: {error.read(500).decode(errors='replace')}"
            if attempt + 1 == tries or not (error.code >= 500 or error.code == 429):
                raise EndpointError(said) from error
        except ValueError as error:
            raise EndpointError(f"{url} answered with no JSON: {error}") from error
        except OSError as error:  # URLError is one
            if attempt + 1 == tries:
                raise EndpointError(f"{url}: {error}") from error
        await asyncio.sleep(min(30.0, 0.5 * 2**attempt))
    raise AssertionError("unreachable")


def _post(url: str, key: str, body: Mapping[str, Any]) -> Any:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=600) as reply:
        return json.load(reply)


def _call(raw: Mapping[str, Any]) -> ToolCall:
    function = raw["function"]
    body = json.dumps({"name": function["name"], "arguments": function.get("arguments") or "{}"})
    (call,) = parse_tool_calls(f"<tool_call>{body}</tool_call>", "hermes")
    return ToolCall(call.name, call.arguments, raw.get("id") or call.call_id, call.error)
