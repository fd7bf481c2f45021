"""From a resolved config to a started `Session`, and back to nothing.

Everything that starts something is undone in reverse order, however the run ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import logging
import os
import time
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rewards.scorer import Scorer
from rl.checkpoint.copies import Copies
from rl.checkpoint.store import Checkpoint, CheckpointStore, retention
from rl.config import Resolved
from rl.config.deadline import SLURM, parse_deadline
from rl.config.errors import ConfigError
from rl.config.plugins import load_object
from rl.config.schema import Config
from rl.data import open_eval, open_training
from rl.data.tokens import eos_ids, load_tokenizer
from rl.objectives import build
from rl.orchestration.actors import ProcessSetup, RolloutActor, TrainerActor
from rl.orchestration.cluster import ClusterError, cluster
from rl.orchestration.phases import Phases
from rl.orchestration.placement import Placement, plan_placement, shortfall
from rl.orchestration.pool import RolloutPool
from rl.orchestration.probe import probe_weights
from rl.orchestration.session import Counters, Session
from rl.orchestration.trainer_group import TrainerGroup
from rl.planners import PLANNERS
from rl.tracking.progress import Progress
from rl.tracking.run_directory import RunDirectory
from rl.tracking.tracker import Tracker

log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def open_session(
    resolved: Resolved, directory: RunDirectory, progress: Progress, *, resume: Checkpoint | None = None
) -> AsyncIterator[Session]:
    """Starts everything that the config names, with current weights in every engine.

    Raises:
        ConfigError, ClusterError, DeadlineError, WorkerDied: with one message that says what to do.
    """
    config = resolved.config
    by = end_time(config.stop.by)
    async with contextlib.AsyncExitStack() as stack:
        with progress.phase("reading data"):
            tokenizer = load_tokenizer(config.model)
            tasks = open_training(config, tokenizer)
            held_out = open_eval(config, tokenizer)
        keeps = retention(config.checkpoint)
        copies = Copies(config.checkpoint.copy_to, directory.path, keeps) if config.checkpoint.copy_to else None
        scorer = Scorer(config.reward, base_dir=Path.cwd())
        stack.callback(scorer.close)
        if config.reward.check_gold:
            with progress.phase("checking rewards on gold answers"):
                await scorer.check_gold(tasks.peek(config.reward.check_gold), config.reward.gold_column)
        with progress.phase("starting Ray"):
            trainer, pool, placement, gpus = await place_actors(stack, config, directory)
        with progress.phase("starting trainer and engines"):
            if placement.engine_gpus or not gpus:
                await asyncio.gather(trainer.start(), pool.start())
            else:  # engines are told which GPUs the ranks got
                await trainer.start()
                pool.devices = _shared_devices(config, await trainer.gpu_ids())
                await pool.start()
        session = Session(
            config=config,
            pool=pool,
            trainer=trainer,
            scorer=scorer,
            planner=load_object(config.planner, PLANNERS)(**config.planner_options),
            objective=build(config.algorithm, max_response_tokens=config.rollout.max_response_tokens),
            tasks=tasks,
            eval_tasks=held_out,
            eos=eos_ids(config.model, tokenizer),
            directory=directory,
            tracker=stack.enter_context(Tracker(directory, config)),
            progress=progress,
            store=CheckpointStore(directory.checkpoints, keeps),
            phases=Phases(pool.sleep, pool.wake) if gpus and config.colocate else Phases(),
            counters=Counters(),
            copies=copies,
            by=by,
        )
        stack.push_async_exit(functools.partial(_finish_saving, session))
        pool.republish = lambda: trainer.publish(session.version, pool)
        session.beginning = copy.deepcopy(session.state_dict())
        if resume is not None:
            with progress.phase(f"loading {resume.path.name}"):
                await session.load(resume)
        with progress.phase("sending weights"):
            number = session.counters.version
            if config.sync.probe:
                await probe_weights(session)
            session.counters.version = number
            await session.publish_loaded()
        yield session


def end_time(text: str | None) -> float | None:
    """`stop.by` in seconds of the monotonic clock.

    Raises:
        ConfigError: it has passed, or names a Slurm job's end outside a job.
    """
    if text is None:
        return None
    now = datetime.now().astimezone()
    end = parse_deadline(text, now=now, environ=os.environ)
    if end is None:
        raise ConfigError(f"stop.by = slurm, but {SLURM} is not set: Slurm 23.02 and later set it inside a job")
    if end <= now:
        raise ConfigError(f"stop.by = {text} has passed: it is {now.isoformat(timespec='seconds')}")
    return time.monotonic() + (end - now).total_seconds()


async def _finish_saving(session: Session, kind: type[BaseException] | None, *_: object) -> None:
    """A checkpoint that is being written is finished, whatever ended the run; that fault goes first."""
    try:
        await session.saved()
    except Exception as error:
        if kind is None:
            raise
        log.warning("the checkpoint that was being written is lost: %s", error)


async def place_actors(
    stack: contextlib.AsyncExitStack, config: Config, directory: RunDirectory
) -> tuple[TrainerGroup, RolloutPool, Placement, int]:
    """Ray, room for the actors, and these, not started; all ends with ``stack``. Also the number of GPUs."""
    cpus = max(os.cpu_count() or 1, config.trainer.ranks + config.rollout.workers)
    stack.enter_context(cluster(config.ray, logical_cpus=cpus, use_gpus=config.device != "cpu"))
    gpus = _gpus(config)
    placement = plan_placement(config, gpus=gpus)
    group = await _reserve(placement, config.ray.start_timeout_s)
    stack.callback(remove_placement_group, group)
    trainer, pool = _make_actors(config, directory, placement, group, gpus)
    stack.push_async_callback(trainer.stop)
    stack.push_async_callback(pool.stop)
    return trainer, pool, placement, gpus


def _gpus(config: Config) -> int:
    """GPUs that the run may use, 0 where it is on CPU."""
    available = int(ray.cluster_resources().get("GPU", 0))
    if config.device == "gpu" and not available:
        raise ClusterError("device=gpu, but Ray sees no GPU; `hone doctor` shows what it sees")
    return 0 if config.device == "cpu" else available


async def _reserve(placement: Placement, seconds: float) -> Any:
    """The placement group, once the cluster has room for it."""
    lacking = shortfall(placement.bundles, ray.cluster_resources())
    if lacking:
        raise ClusterError(
            f"the cluster is too small: {lacking}. Lower trainer.ranks or rollout.workers, or raise ray.num_cpus"
        )
    group = placement_group(list(placement.bundles), strategy=placement.strategy)
    ready, _ = await asyncio.to_thread(ray.wait, [group.ready()], timeout=seconds)
    if not ready:
        raise ClusterError(
            f"the cluster has no room for {list(placement.bundles)} within {seconds:.0f} s; "
            f"it has {ray.cluster_resources()}. Lower trainer.ranks or rollout.workers, or raise ray.num_cpus"
        )
    return group


def _make_actors(
    config: Config, directory: RunDirectory, placement: Placement, group: Any, gpus: int
) -> tuple[TrainerGroup, RolloutPool]:
    """Trainer and engines, not started."""
    cores = os.cpu_count() or 1
    logs = directory.path / "logs"
    logs.mkdir(exist_ok=True)

    def setup(name: str, threads: int | None, share: int, devices: tuple[str, ...] | None) -> ProcessSetup:
        return ProcessSetup(
            name=name,
            cwd=os.getcwd(),
            log_file=str(logs / f"{name}.log"),
            threads=threads or max(1, cores // share),
            devices=devices if gpus else (),
        )

    def place(bundle: int) -> PlacementGroupSchedulingStrategy:
        return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)

    # Ray's decorator turns the classes into something that type checkers do not see.
    trainer_actor: Any = TrainerActor
    rollout_actor: Any = RolloutActor

    def trainer(rank: int) -> Any:
        options = dict(num_cpus=1, num_gpus=placement.trainer_gpus, scheduling_strategy=place(placement.trainer[rank]))
        process = setup(f"trainer-{rank}", config.trainer.threads, config.trainer.ranks, None)
        return trainer_actor.options(**options).remote(process, config, rank, config.trainer.ranks, directory.run_id)

    def engine(index: int) -> Any:
        shared = gpus and not placement.engine_gpus
        options = dict(num_cpus=1, num_gpus=placement.engine_gpus, scheduling_strategy=place(placement.engines[index]))
        process = setup(
            f"rollout-{index}", config.rollout.threads, config.rollout.workers, pool.devices[index] if shared else None
        )
        return rollout_actor.options(**options).remote(process, config, index)

    pool = RolloutPool(
        engine,
        workers=config.rollout.workers,
        capacity=2 * config.rollout.max_sequences,
        static=config.deterministic,
        start_timeout=config.rollout.start_timeout_s,
        request_timeout=config.rollout.timeout_s,
        sync_timeout=config.sync.timeout_s,
    )
    ranks = TrainerGroup(
        trainer,
        ranks=config.trainer.ranks,
        start_timeout=config.rollout.start_timeout_s,
        timeout=config.trainer.timeout_s,
        sync_timeout=config.sync.timeout_s,
    )
    return ranks, pool


def _shared_devices(config: Config, ids: list[list[str]]) -> list[tuple[str, ...]]:
    parallel = config.rollout.tensor_parallel
    return [
        tuple(device for rank in ids[w * parallel : (w + 1) * parallel] for device in rank)
        for w in range(config.rollout.workers)
    ]
