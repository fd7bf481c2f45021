"""After the death of a trainer rank: new ranks, the last checkpoint, and on from there."""

from __future__ import annotations

import contextlib
import logging

from rl.orchestration.session import Session
from rl.orchestration.waiting import TrainerDied

log = logging.getLogger(__name__)


async def recover(session: Session, error: TrainerDied) -> None:
    """Starts the trainer again and takes the run back to its newest checkpoint, or to its beginning.

    What was sampled since is thrown away: the steps are done again, as a resume would do them. Engines live on
    and get the checkpoint's weights. Metrics past the checkpoint go to ``metrics.abandoned.jsonl``.

    Raises:
        TrainerDied: this was one death more than ``trainer.max_restarts``.
    """
    most = session.config.trainer.max_restarts
    if session.trainer_restarts >= most:
        raise TrainerDied(f"{error} (trainer.max_restarts is {most})") from error
    session.trainer_restarts += 1
    with contextlib.suppress(Exception):  # what the dead ranks were writing is lost with them
        await session.saved()
    checkpoint = session.store.latest()
    where = "the beginning" if checkpoint is None else f"the checkpoint of step {checkpoint.step}"
    log.warning("%s; starting the trainer again (%d of %d), on from %s", error, session.trainer_restarts, most, where)
    with session.progress.phase("starting the trainer again"):
        await session.pool.abort()
        await session.trainer.restart()
        if checkpoint is None:
            session.load_state(session.beginning)
        else:
            await session.load(checkpoint)
        session.tracker.rewind(session.counters.step)
        await session.publish_loaded()
