"""A run in progress: the parts that the recipe named, and what can be done with them between steps."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rewards.scorer import Scorer
from rl.checkpoint.copies import Copies
from rl.checkpoint.store import Checkpoint, CheckpointStore, load_random_state, random_state, write_state
from rl.config.schema import Config
from rl.data import TaskStream
from rl.objectives.base import Objective
from rl.orchestration.evaluate import eval_sampling, evaluate, train_sampling
from rl.orchestration.phases import Phases
from rl.orchestration.pool import RolloutPool
from rl.orchestration.stopping import fired, time_is_up, total_steps
from rl.orchestration.trainer_group import TrainerGroup
from rl.planners.base import Planner, PlannerContext
from rl.tracking.progress import Progress
from rl.tracking.run_directory import RunDirectory
from rl.tracking.tracker import Tracker
from rl.types import PolicyVersion, Task

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Counters:
    """What a run has done so far; saved with every checkpoint."""

    step: int = 0
    incarnation: int = 0
    version: int = 0
    tokens_generated: int = 0
    tokens_trained: int = 0
    seconds: float = 0.0
    """Time spent in steps, over all restarts."""
    last: dict[str, float] = field(default_factory=dict)
    """Newest value of every metric, for stop rules and summaries."""
    first: dict[str, float] = field(default_factory=dict)
    """First value of every metric."""

    def record(self, metrics: Mapping[str, float]) -> None:
        self.last |= metrics
        self.first = dict(metrics) | self.first


@dataclass(slots=True)
class Session:
    """Everything that a run is made of, started and ready."""

    config: Config
    pool: RolloutPool
    trainer: TrainerGroup
    scorer: Scorer
    planner: Planner
    objective: Objective
    tasks: TaskStream
    eval_tasks: Mapping[str, Sequence[Task]]
    eos: tuple[int, ...]
    directory: RunDirectory
    tracker: Tracker
    progress: Progress
    store: CheckpointStore
    phases: Phases
    counters: Counters
    _saving: asyncio.Task[None] | None = None
    copies: Copies | None = None
    copy_failures: int = 0
    skipped_steps: int = 0
    """Steps in a row that made no update."""
    trainer_restarts: int = 0
    beginning: Mapping[str, Any] = field(default_factory=dict)
    """The state before the first step."""
    saved_at: float = field(default_factory=time.monotonic)
    save_asked: bool = False
    """SIGUSR1: save after this step and go on."""
    stop_asked: str | None = None
    """A signal asked the run to save after this step and to end, or its time is up."""
    by: float | None = None
    """`stop.by` in seconds of the monotonic clock."""
    longest_step: float = 0.0
    longest_save: float | None = None

    @property
    def version(self) -> PolicyVersion:
        return PolicyVersion(self.counters.incarnation, self.counters.version)

    @property
    def total_steps(self) -> int | None:
        return total_steps(
            self.config.stop, tasks_per_epoch=self.tasks.tasks_per_epoch, tasks_per_step=self.config.tasks_per_step
        )

    def planner_context(self) -> PlannerContext:
        return PlannerContext(
            step=self.counters.step,
            version=self.version,
            tasks=self.tasks,
            tasks_per_step=self.config.tasks_per_step,
            samples_per_task=self.config.samples_per_task,
            sampling=train_sampling(self.config, self.eos),
        )

    def stop_reason(self) -> str | None:
        """The stop rule that has fired, in words."""
        if self.stop_asked is not None:
            return self.stop_asked
        counters = self.counters
        return fired(
            self.config.stop,
            step=counters.step,
            epoch=self.tasks.epoch,
            hours=counters.seconds / 3600,
            tokens=counters.tokens_trained,
            metrics=counters.last,
        )

    def heed_time(self, step_seconds: float) -> None:
        """Asks the run to save and end when there is no time for one more step before `stop.by`."""
        self.longest_step = max(self.longest_step, step_seconds)
        if self.by is None or self.stop_reason() is not None:
            return
        if time_is_up(self.by, now=time.monotonic(), step_s=self.longest_step, save_s=self.longest_save):
            self.stop_asked = f"stop.by = {self.config.stop.by}: no time for another step"

    async def publish(self) -> None:
        """Gives every engine the trainer's weights under a new version."""
        self.counters.version += 1
        await self.trainer.publish(self.version, self.pool)

    async def publish_loaded(self) -> None:
        """Publishes the weights of a checkpoint, under the number that they had."""
        self.counters.version = max(0, self.counters.version - 1)
        await self.publish()

    async def evaluate(self) -> dict[str, float]:
        """Held-out metrics at the current weights; samples go to the run directory."""
        if not self.eval_tasks:
            return {}
        with self.progress.phase("evaluating") as phase:
            metrics, bundles = await evaluate(
                self.eval_tasks,
                self.pool,
                self.scorer,
                sampling=eval_sampling(self.config, self.eos),
                samples=self.config.eval.samples_per_task,
                label=str(self.counters.step),
                on_done=phase.advance,
            )
        self.tracker.rollouts(self.counters.step, bundles, purpose="eval")
        self.counters.record(metrics)
        return metrics

    async def save(self) -> Path:
        """Takes a checkpoint: weights, optimizer, and all that the next step depends on.

        Returns its folder, which is there once the files have been written: training may go on
        meanwhile, and `saved` waits.
        """
        await self.saved()
        began = time.monotonic()
        step, best = self.counters.step, self.config.checkpoint.best
        value = None if best is None else self.counters.last.get(best)
        if best is not None and value is None:
            log.warning("checkpoint.best: no metric %r yet; known are %s", best, ", ".join(sorted(self.counters.last)))
        with self.progress.phase("saving"):
            scratch = self.store.begin(step)
            with self.store.discarding(scratch):
                await self.trainer.save(scratch / "trainer")
                write_state(scratch, self.state_dict())
                self.directory.copy_records(scratch / "run")
        self._saving = asyncio.create_task(self._write(scratch, step, value, began))
        if not self.config.checkpoint.background:
            await self.saved()
        self.saved_at = time.monotonic()
        return self.store.root / f"step-{step:06d}"

    async def _write(self, scratch: Path, step: int, value: float | None, began: float) -> None:
        with self.store.discarding(scratch):
            await self.trainer.written()
        await asyncio.to_thread(self.store.commit, scratch, step, value=value)
        if self.copies is not None:
            try:
                await asyncio.to_thread(self.copies.update, self.store)
            except Exception as error:  # the checkpoint is safe here; the next call sends what is lacking
                self.copy_failures += 1
                place = self.config.checkpoint.copy_to
                log.warning("the checkpoint of step %d was not copied to %s: %s", step, place, error)
        self.longest_save = max(self.longest_save or 0.0, time.monotonic() - began)

    async def saved(self, *, wait: bool = True) -> None:
        """Waits for the checkpoint that is being written, if any, and raises what went wrong with it.

        Args:
            wait: else only looks.
        """
        if self._saving is not None and (wait or self._saving.done()):
            saving, self._saving = self._saving, None
            await saving

    def save_due(self) -> bool:
        """Whether the step that just ended is to be saved."""
        checkpoint, asked = self.config.checkpoint, self.save_asked
        self.save_asked = False
        regular = checkpoint.every > 0 and self.counters.step % checkpoint.every == 0
        minutes = (time.monotonic() - self.saved_at) / 60
        return asked or regular or (checkpoint.every_minutes is not None and minutes >= checkpoint.every_minutes)

    async def load(self, checkpoint: Checkpoint) -> None:
        """Continues from a checkpoint: the trainer's ranks first, then the controller's own state."""
        await self.trainer.load(checkpoint.path / "trainer")
        self.load_state(checkpoint.state())

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The controller's own part of `load`; engines hold older weights until `publish_loaded`."""
        incarnation = max(self.counters.incarnation, state["counters"]["incarnation"])
        self.counters = Counters(**state["counters"])
        self.counters.incarnation = incarnation + 1
        self.tasks.load_state_dict(state["tasks"])
        self.planner.load_state_dict(state["planner"])
        self.objective.load_state_dict(state["objective"])
        load_random_state(state["random"])

    def state_dict(self) -> dict[str, Any]:
        return {
            "counters": asdict(self.counters),
            "tasks": self.tasks.state_dict(),
            "planner": self.planner.state_dict(),
            "objective": self.objective.state_dict(),
            "random": random_state(),
        }
