"""What the controller hands to the trainer ranks for one step. numpy only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rl.types import Segment


@dataclass(slots=True)
class TrainRow:
    """One segment to train on, with what the controller knows of its trajectory."""

    segment: Segment
    advantage: float
    weight: float
    """Multiplies the token losses of the row."""
    sample_id: int
    """Identity of the trajectory within the run (a hash); seeds stochastic parts of objectives."""
    kind_id: int
    group_id: int
    """Index of the row's group within the step."""
    trajectory_tokens: int
    """Trained tokens of the whole trajectory, over all of its segments."""
    group_tokens: int = 0
    """Trained tokens of the whole group."""
    group_sequences: int = 1
    """Trajectories of the group that are trained."""
    features: Mapping[str, float] = field(default_factory=dict)
    """What the objective's verdict carried for the rank side."""


@dataclass(slots=True)
class Counts:
    """Denominators of one update, over all ranks, taken before the batch is split."""

    tokens: int = 0
    sequences: int = 0
    groups: int = 0


@dataclass(slots=True)
class UpdatePlan:
    """One optimizer step on one rank."""

    microbatches: list[list[int]]
    """Row indices of each packed micro-batch. All ranks have equally many; spare ones are empty."""
    counts: Counts
    """Global; includes rows that were skipped because they cannot contribute a gradient."""


@dataclass(slots=True)
class StepBatch:
    """One step on one rank."""

    step: int
    rows: list[TrainRow]
    updates: list[UpdatePlan]
    kinds: tuple[str, ...] = ("solution",)
    groups: int = 0
    """Groups of the step, over all ranks; `TrainRow.group_id` is below it."""
    total_updates: int | None = None
    """Updates of the whole run, for the schedule; ``None`` when the end is not known."""
    restart_schedule: bool = False


@dataclass(slots=True)
class StepResult:
    """What a rank reports. Sums and counts, so that the controller's means are exact."""

    sums: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Metric -> (sum, count), already reduced over ranks."""
    maxima: dict[str, float] = field(default_factory=dict)
    scalars: dict[str, float] = field(default_factory=dict)
    """Per-step values: grad norm, lr, updates, seconds of each phase."""

    def means(self) -> dict[str, float]:
        """All of it as one flat table: means, maxima and scalars by metric name."""
        means = {name: total / count for name, (total, count) in self.sums.items() if count}
        return means | self.maxima | self.scalars
