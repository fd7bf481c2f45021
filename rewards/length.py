"""Rewards for the length of an answer, and against saying the same again.

A penalty near the response budget is `algorithm.overlong_buffer` (DAPO), which needs no reward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rewards.contract import RewardError, text_of


def cosine_length(
    completions: Sequence[Any],
    completion_ids: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    right: Sequence[float] = (1.0, 0.5),
    wrong: Sequence[float] = (-1.0, -0.5),
    correct: str = "last_number",
    **columns: Any,
) -> list[float | None]:
    """A value that follows half a cosine from an empty answer to one of ``max_tokens`` (Yeo et al. 2025).

    Args:
        right: values of a right answer of no tokens and of ``max_tokens``: short ones are better.
        wrong: the same for a wrong one: long ones are less bad.
        correct: the reward that says which are right, at 0.5 or more.
    """
    from rewards.registry import REWARDS

    if max_tokens <= 0:
        raise RewardError(f"cosine_length: max_tokens must be above 0, but is {max_tokens}")
    if correct not in REWARDS or correct == "cosine_length":
        raise RewardError(f"cosine_length: correct: {correct!r} is none of {', '.join(sorted(REWARDS))}")
    marks = REWARDS[correct](completions=completions, completion_ids=completion_ids, **columns)
    scores: list[float | None] = []
    for mark, ids in zip(marks, completion_ids, strict=True):
        if mark is None:
            scores.append(None)
            continue
        first, last = right if mark >= 0.5 else wrong
        share = min(1.0, len(ids) / max_tokens)
        scores.append(last + 0.5 * (first - last) * (1.0 + math.cos(share * math.pi)))
    return scores


def repetition(completions: Sequence[Any], *, n: int = 3, worst: float = -1.0, **columns: Any) -> list[float | None]:
    """``worst`` times the share of ``n``-grams of words that were there before; 0 for texts without repetition."""
    if n < 1:
        raise RewardError(f"repetition: n must be 1 or more, but is {n}")
    scores: list[float | None] = []
    for completion in completions:
        words = text_of(completion).lower().split()
        grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
        scores.append(worst * (1.0 - len(set(grams)) / len(grams)) if grams else 0.0)
    return scores
