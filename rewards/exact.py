"""Rewards that compare text or the last number with the gold answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from rewards.contract import text_of

_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:(?:,|\{,\}|\\,)\d{3})+(?!\d)|\d+)(?:\.\d+)?|[-+]?\.\d+")
_THOUSANDS = re.compile(r"\{,\}|\\,|,")


def exact_match(
    completions: Sequence[Any], answer: Sequence[Any], *, ignore_case: bool = False, **columns: Any
) -> list[float | None]:
    """1 where the completion is the answer, surrounding space aside."""

    def plain(value: Any) -> str:
        text = " ".join(text_of(value).split())
        return text.casefold() if ignore_case else text

    return [float(plain(c) == plain(a)) for c, a in zip(completions, answer, strict=True)]


def last_number(completions: Sequence[Any], answer: Sequence[Any], **columns: Any) -> list[float | None]:
    """1 where the last number in the completion equals the last number in the answer (`#### 72` works)."""
    return [
        float((found := _last(text_of(c))) is not None and found == _last(text_of(a)))
        for c, a in zip(completions, answer, strict=True)
    ]


def close_number(
    completions: Sequence[Any], answer: Sequence[Any], *, within: float = 10.0, **columns: Any
) -> list[float | None]:
    """1 where the last number is the answer's, falling in a line to 0 at a distance of ``within``.

    A graded reward tells the wrong samples of a group apart, which right and wrong alone cannot.
    """
    if not within > 0:
        raise ValueError(f"within must be above 0, but is {within}")
    scores: list[float | None] = []
    for completion, gold in zip(completions, answer, strict=True):
        said, right = _last(text_of(completion)), _last(text_of(gold))
        missing = said is None or right is None
        scores.append(0.0 if missing else max(0.0, 1.0 - float(abs(said - right)) / within))  # type: ignore[operator]
    return scores


def _last(text: str) -> Decimal | None:
    numbers = _NUMBER.findall(text[-10_000:])
    if not numbers or len(numbers[-1]) > 200:
        return None
    try:
        return Decimal(_THOUSANDS.sub("", numbers[-1]))
    except InvalidOperation:
        return None
