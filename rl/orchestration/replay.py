"""A batch that could not be trained on: kept with the run, and run again in training only."""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from rl.checkpoint.store import CheckpointStore
from rl.config import load_resolved
from rl.config.errors import ConfigError
from rl.tracking.run_directory import RunDirectory
from rl.training.batch import StepBatch

if TYPE_CHECKING:
    from rl.orchestration.session import Session


class TrainingFault(RuntimeError):
    """No update could be made, step after step."""


async def give_up(session: Session, batches: Sequence[StepBatch]) -> NoReturn:
    """Keeps the batch and the state, and ends the run.

    Raises:
        TrainingFault: always.
    """
    directory, step = session.tracker.directory.path, session.counters.step
    path = _kept(directory, step)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(pickle.dumps(list(batches)))
    await session.save()
    await session.saved()
    raise TrainingFault(
        f"{session.skipped_steps} steps in a row had gradients that are not finite; no update was made. The batch of "
        f"step {step} is kept: `hone run replay {directory} --step {step}` trains on it again and names the rows"
    )


async def replay(run: Path, step: int, overrides: tuple[str, ...] = ()) -> tuple[dict[str, float], list[str]]:
    """Trains once on the kept batch of ``step``, from the newest checkpoint that is not past it.

    Returns:
        The step's metrics, and a line for each row with a number that is not finite.

    Raises:
        ConfigError: no batch was kept for the step; names those that were.
    """
    from rl.orchestration.start import place_actors

    opened = RunDirectory.open(run, lock=False)
    path = _kept(opened.path, step)
    if not path.is_file():
        kept = sorted(int(p.stem.removeprefix("step-")) for p in path.parent.glob("step-*.pkl"))
        raise ConfigError(f"{run} kept no batch of step {step}; it has {kept or 'none'}")
    batches: list[StepBatch] = pickle.loads(path.read_bytes())  # this run's own file
    config = load_resolved(opened.config_path, overrides).config
    config = dataclasses.replace(config, rollout=dataclasses.replace(config.rollout, workers=0))
    whole = [c for c in CheckpointStore(opened.checkpoints).complete() if c.step <= step]
    async with contextlib.AsyncExitStack() as stack:
        trainer, *_ = await place_actors(stack, config, opened)
        await trainer.start()
        if whole:
            await trainer.load(whole[-1].path / "trainer")
        rows = [row for batch in batches for row in batch.rows]
        faults = []
        for number, row in enumerate(rows):
            # Row by row: a whole micro-batch of NaN does not say where it came from.
            (found,) = await trainer.logprobs([row.segment.token_ids.tolist()], row.segment.temperature)
            bad = [
                name
                for name, values in (
                    ("advantage", row.advantage),
                    ("weight", row.weight),
                    ("the engine's log-probs", 0.0 if row.segment.logprobs is None else row.segment.logprobs),
                    ("the trainer's log-probs", found),
                )
                if not np.isfinite(values).all()
            ]
            if bad:
                faults.append(f"row {number} (group {row.group_id}): not finite: {', '.join(bad)}")
        result = await trainer.train(batches)
    return result.means(), faults


def _kept(run: Path, step: int) -> Path:
    return run / "faults" / f"step-{step:06d}.pkl"
