"""Reasoning Gym's own scorers, for tasks that come from its generators."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from rewards.contract import text_of


def reasoning_gym(
    completions: Sequence[Any], reasoning_gym: Sequence[str], trajectories: Sequence[Any], **columns: Any
) -> list[float | None]:
    """The score in [0, 1] that the task's generator gives the whole completion."""
    scores: list[float | None] = []
    for i, (completion, name) in enumerate(zip(completions, reasoning_gym, strict=True)):
        entry = {key: values[i] for key, values in columns.items() if isinstance(values, (list, tuple))}
        scores.append(float(_generator(name).score_answer(text_of(completion).strip(), entry)))
    return scores


@cache
def _generator(name: str) -> Any:
    import reasoning_gym as gym

    return gym.create_dataset(name, size=1, seed=0)
