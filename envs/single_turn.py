"""The degenerate environment: one prompt, one answer, scored by reward functions alone."""

from __future__ import annotations

from envs.base import Action, Limits, Observation, StepResult
from rl.types import Task


class SingleTurn:
    """Shows the task's prompt and ends at the first answer."""

    async def reset(self, task: Task, *, seed: int, limits: Limits) -> Observation:
        return Observation(task.messages)

    async def step(self, action: Action, *, limits: Limits) -> StepResult:
        return StepResult(terminated=True)

    async def close(self) -> None:
        """Nothing to free."""
