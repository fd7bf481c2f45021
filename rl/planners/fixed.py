"""The plain planner: so many tasks, so many samples each, everything accepted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl.planners.base import PlannerContext
from rl.types import SOLUTION, Accept, Bundle, Group, Plan, Request, bundle_id


class FixedPlanner:
    """Draws ``tasks_per_step`` tasks and samples each ``samples_per_task`` times."""

    def __init__(self) -> None:
        self._open: set[str] = set()

    def start(self, ctx: PlannerContext) -> Plan:
        requests = []
        for task, draw in ctx.tasks.take(ctx.tasks_per_step):
            name = bundle_id(task.task_id, draw)
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
        self._open = {request.bundle_id for request in requests}
        return Plan(requests=tuple(requests), step_complete=not requests)

    def on_rollout(self, group: Group, ctx: PlannerContext) -> Plan:
        return Plan()

    def on_scored(self, bundle: Bundle, ctx: PlannerContext) -> Plan:
        self._open.discard(bundle.bundle_id)
        return Plan(close=((bundle.bundle_id, Accept()),), step_complete=not self._open)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing lasts longer than a step."""
