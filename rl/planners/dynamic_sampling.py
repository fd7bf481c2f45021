"""Dynamic sampling (DAPO, arXiv 2503.14476): groups whose answers are all right or all wrong are replaced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl.config.errors import ConfigError
from rl.planners.base import PlannerContext
from rl.types import SOLUTION, Accept, Bundle, Drop, Group, Plan, Request, bundle_id


class NothingPassed(RuntimeError):
    """No group of a step had both right and wrong answers."""


class DynamicSamplingPlanner:
    """Draws tasks one for one until ``tasks_per_step`` groups have outcomes that differ.

    What is read is the outcome, not the shaped reward. When the bound is reached the step trains on the
    groups that passed (denominators are theirs alone); when none passed, ``on_empty`` decides.

    Args:
        max_factor: at most ``max_factor * tasks_per_step`` tasks are drawn in a step.
        on_empty: ``stop`` ends the run with a message, ``skip`` makes a step without training.
    """

    def __init__(self, *, max_factor: float = 4.0, on_empty: str = "stop") -> None:
        if max_factor < 1:
            raise ConfigError(f"planner_options.max_factor must be at least 1, but is {max_factor}")
        if on_empty not in ("stop", "skip"):
            raise ConfigError(f"planner_options.on_empty must be stop or skip, but is {on_empty!r}")
        self._max_factor, self._on_empty = max_factor, on_empty
        self._open: set[str] = set()
        self._accepted = self._drawn = 0

    def start(self, ctx: PlannerContext) -> Plan:
        self._open, self._accepted, self._drawn = set(), 0, 0
        requests = self._draw(ctx, ctx.tasks_per_step)
        return Plan(requests=requests, step_complete=not requests)

    def on_rollout(self, group: Group, ctx: PlannerContext) -> Plan:
        return Plan()

    def on_scored(self, bundle: Bundle, ctx: PlannerContext) -> Plan:
        self._open.discard(bundle.bundle_id)
        reason = _without_signal(bundle)
        if reason is None:
            self._accepted += 1
            close = ((bundle.bundle_id, Accept()),)
            return Plan(close=close, step_complete=not self._open)
        left = int(self._max_factor * ctx.tasks_per_step) - self._drawn
        requests = self._draw(ctx, 1) if left > 0 else ()
        complete = not self._open
        if complete and not self._accepted and self._on_empty == "stop":
            raise NothingPassed(
                f"step {ctx.step}: none of {self._drawn} tasks had both right and wrong answers (the last group: "
                f"{reason.replace('_', ' ')}). Choose easier or harder tasks, raise samples_per_task or "
                "planner_options.max_factor, or set planner_options.on_empty=skip"
            )
        return Plan(requests=requests, close=((bundle.bundle_id, Drop(reason)),), step_complete=complete)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing lasts longer than a step."""

    def _draw(self, ctx: PlannerContext, n: int) -> tuple[Request, ...]:
        requests = []
        for task, draw in ctx.tasks.take(n):
            name = bundle_id(task.task_id, draw)
            self._open.add(name)
            requests.append(
                Request(
                    request_id=f"{ctx.step}:{name}:{SOLUTION}",
                    task=task,
                    kind=SOLUTION,
                    draw=draw,
                    bundle_id=name,
                    samples=ctx.samples_per_task,
                    sampling=(ctx.sampling,),
                )
            )
        self._drawn += len(requests)
        return tuple(requests)


def _without_signal(bundle: Bundle) -> str | None:
    """Why a bundle teaches nothing, or ``None``."""
    outcomes = {t.outcome for t in bundle.trajectories if t.finish.scorable and t.outcome is not None}
    if len(outcomes) > 1:
        return None
    if not outcomes:
        return "no_outcome"
    return "all_right" if min(outcomes) > 0 else "all_wrong"
