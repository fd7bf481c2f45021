"""Rewards for the form of an answer: tags, patterns, JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from rewards.contract import RewardError, text_of

_FENCE = re.compile(r"```[a-zA-Z]*[ \t]*\n(.*?)```", re.DOTALL)


def tags(
    completions: Sequence[Any], *, names: Sequence[str] = ("think", "answer"), outside: bool = False, **columns: Any
) -> list[float | None]:
    """1 where the text is `<think>...</think><answer>...</answer>`: each tag once, in order, none empty.

    Args:
        names: the tags, in their order.
        outside: other text may stand around and between them.
    """
    return [float(_tagged(text_of(c), tuple(names), outside)) for c in completions]


def _tagged(text: str, names: tuple[str, ...], outside: bool) -> bool:
    place = 0
    for name in names:
        opening, closing = f"<{name}>", f"</{name}>"
        if text.count(opening) != 1 or text.count(closing) != 1:
            return False
        start, end = text.find(opening), text.find(closing)
        if start < place or end < start or not text[start + len(opening) : end].strip():
            return False
        if not outside and text[place:start].strip():
            return False
        place = end + len(closing)
    return outside or not text[place:].strip()


def pattern(
    completions: Sequence[Any], *, regex: str, full: bool = False, seconds: float = 0.2, **columns: Any
) -> list[float | None]:
    """1 where ``regex`` is found in the text, or is the whole of it with ``full``.

    A search that takes longer than ``seconds`` counts as not found: some patterns take time that is
    exponential in what the model writes.
    """
    compiled = _compiled(regex)
    scores: list[float | None] = []
    for completion in completions:
        text = text_of(completion)
        try:
            found = (
                compiled.fullmatch(text.strip(), timeout=seconds) if full else compiled.search(text, timeout=seconds)
            )
        except TimeoutError:
            found = None
        scores.append(float(found is not None))
    return scores


@cache
def _compiled(expression: str) -> Any:
    import regex

    try:
        return regex.compile(expression)
    except regex.error as error:
        raise RewardError(f"pattern: {expression!r} is no regular expression: {error}") from error


def json_object(
    completions: Sequence[Any], *, schema: Mapping[str, Any] | None = None, **columns: Any
) -> list[float | None]:
    """1 where the last fenced block, or else the whole text, is JSON, and fits ``schema`` (JSON Schema)."""
    valid = _validator(json.dumps(schema)) if schema is not None else None
    return [float(_is_json(text_of(c), valid)) for c in completions]


def _is_json(text: str, valid: Any) -> bool:
    blocks = _FENCE.findall(text)
    try:
        value = json.loads(blocks[-1] if blocks else text)
        return valid is None or bool(valid.is_valid(value))
    except (ValueError, RecursionError):
        return False


@cache
def _validator(schema: str) -> Any:
    import jsonschema

    made = json.loads(schema)
    kind = jsonschema.validators.validator_for(made)
    try:
        kind.check_schema(made)
    except jsonschema.SchemaError as error:
        raise RewardError(f"json_object: not a JSON Schema: {error.message}") from error
    return kind(made)
