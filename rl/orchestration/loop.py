"""The step loop: plan, roll out, score, train, publish. One way round, and nothing else owns a loop."""

from __future__ import annotations

import asyncio
import time

from rl.metrics import rollout_metrics
from rl.orchestration.collect import Collected, collect
from rl.orchestration.recovery import recover
from rl.orchestration.replay import give_up
from rl.orchestration.session import Session
from rl.orchestration.stopping import total_updates
from rl.orchestration.waiting import TrainerDied
from rl.training.assemble import assemble


async def run_step(session: Session) -> dict[str, float]:
    """One step. Returns its metrics after they have been written."""
    config, counters, progress = session.config, session.counters, session.progress
    began = time.monotonic()
    counters.step += 1
    session.scorer.step = counters.step
    with progress.phase("generating"):
        async with session.phases.generate(), asyncio.timeout(config.rollout.timeout_s):
            done = await collect(
                session.planner,
                session.planner_context(),
                session.pool,
                session.scorer,
                ordered=config.deterministic,
            )
    metrics = rollout_metrics(done.bundles, session.version) | session.scorer.take_metrics()
    metrics |= {f"planner/dropped/{reason}": float(n) for reason, n in done.dropped.items()}
    with progress.phase("training"):
        metrics |= await _train(session, done)
    with progress.phase("sending weights"):
        synced = time.monotonic()
        if done.directive.publish:
            await session.publish()
    ended = time.monotonic()
    metrics |= {
        "time/generate": done.generate_seconds,
        "time/score": done.score_seconds,
        "time/train": synced - began - done.generate_seconds - done.score_seconds,
        "time/sync": ended - synced,
        "time/step": ended - began,
        "throughput/tokens_per_second": metrics.get("tokens/generated", 0.0) / (ended - began),
        "policy/version": float(counters.version),
        "rollout/restarts": float(session.pool.restarts),
        "trainer/restarts": float(session.trainer_restarts),
        **({"checkpoint/copy_failures": float(session.copy_failures)} if session.copies is not None else {}),
        **{f"data/{name}": value for name, value in session.tasks.metrics().items()},
    }
    counters.seconds += ended - began
    counters.tokens_generated += int(metrics.get("tokens/generated", 0))
    counters.tokens_trained += int(metrics.get("tokens/trained", 0))
    counters.record(metrics)
    await _after_step(session, metrics, done)
    return metrics


async def run_to_end(session: Session) -> str:
    """Steps until a stop rule fires. Returns the rule in words."""
    while (reason := session.stop_reason()) is None:
        began = time.monotonic()
        try:
            await run_step(session)
            session.heed_time(time.monotonic() - began)
        except TrainerDied as error:
            await recover(session, error)
    await session.saved()
    if session.config.checkpoint.at_end or session.stop_asked is not None:
        latest = session.store.latest()
        if latest is None or latest.step != session.counters.step:
            await session.save()
            await session.saved()
    return reason


async def _train(session: Session, done: Collected) -> dict[str, float]:
    config, directive = session.config, done.directive
    if directive.reset:
        await session.trainer.reset()
    batches, stats = assemble(
        session.counters.step,
        done.bundles,
        session.objective,
        config,
        ranks=config.trainer.ranks,
        total_updates=total_updates(config, tasks_per_epoch=session.tasks.tasks_per_epoch),
        restart_schedule=directive.schedule == "restart",
        updates=directive.updates,
        epochs=directive.epochs,
    )
    async with session.phases.train():
        result = await session.trainer.train(batches)
    metrics = stats | result.means()
    made_none = metrics.get("train/skipped_updates", 0.0) >= metrics.get("train/updates", 0.0) > 0
    session.skipped_steps = session.skipped_steps + 1 if made_none else 0
    if session.skipped_steps >= config.trainer.max_skipped_steps:
        await give_up(session, batches)
    return metrics


async def _after_step(session: Session, metrics: dict[str, float], done: Collected) -> None:
    config, step = session.config, session.counters.step
    due = config.eval.every > 0 and step % config.eval.every == 0
    ended = session.stop_reason() is not None and session.stop_asked is None  # a signal leaves no time for it
    if due or (config.eval.at_end and ended):
        metrics |= await session.evaluate()
    session.tracker.log(step, metrics)
    session.tracker.rollouts(step, done.bundles, purpose="train")
    session.progress.step(step, metrics)
    await session.saved(wait=False)
    if session.save_due():
        await session.save()
