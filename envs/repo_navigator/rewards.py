"""Outcomes of RepoNavigator episodes as reward functions.

The environment itself gives `dice` and `calls`. These read its metrics, so that a recipe can name an
unshaped outcome: `reward: {outcome: localised, functions: {localised: {fn: ..., weight: 0}}}`.
"""

from __future__ import annotations

from collections.abc import Sequence

from rl.types import Trajectory


def function_dice(trajectories: Sequence[Trajectory]) -> list[float | None]:
    """Dice of the answer at function level, in [0, 1]; 0 when the episode ended without one."""
    return [t.metrics.get("function_dice", 0.0) for t in trajectories]


def file_dice(trajectories: Sequence[Trajectory]) -> list[float | None]:
    """Dice of the answer's files, in [0, 1]."""
    return [t.metrics.get("file_dice", 0.0) for t in trajectories]
