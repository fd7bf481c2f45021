"""The planner protocol: who is sampled, how often, how long, and when a step is complete.

A planner is event-driven. The loop calls it at the start of a step, when a group has been rolled
out (not yet scored), and when a bundle has been scored; each time it may order more requests,
close bundles, or declare the step complete. It owns no loop and starts nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rl.types import Bundle, Group, Plan, PolicyVersion, SamplingParams, Task


class TaskCursor(Protocol):
    """The resumable stream of training tasks."""

    def take(self, n: int) -> list[tuple[Task, int]]:
        """The next ``n`` tasks, each with its draw number."""
        ...


@dataclass(slots=True)
class PlannerContext:
    """What a planner may read and use."""

    step: int
    version: PolicyVersion
    tasks: TaskCursor
    tasks_per_step: int
    samples_per_task: int
    sampling: SamplingParams
    """Training defaults; a planner may replace fields per sample."""


class Planner(Protocol):
    def start(self, ctx: PlannerContext) -> Plan: ...

    def on_rollout(self, group: Group, ctx: PlannerContext) -> Plan: ...

    def on_scored(self, bundle: Bundle, ctx: PlannerContext) -> Plan: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
