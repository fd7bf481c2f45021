"""Evaluation on the run's own engines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from rl.config.schema import Config
from rl.metrics import eval_metrics
from rl.orchestration.collect import BundleScorer, Sampler
from rl.types import SOLUTION, Bundle, Group, Request, SamplingParams, Task, bundle_id


def train_sampling(config: Config, eos: Sequence[int]) -> SamplingParams:
    """How training samples are drawn."""
    rollout = config.rollout
    return SamplingParams(
        max_tokens=rollout.max_response_tokens,
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        min_p=rollout.min_p,
        stop=tuple(rollout.stop),
        stop_token_ids=tuple(eos),
        ignore_eos=rollout.ignore_eos,
    )


def eval_sampling(config: Config, eos: Sequence[int]) -> SamplingParams:
    """How evaluation samples are drawn."""
    return SamplingParams(
        max_tokens=config.eval.max_response_tokens or config.rollout.max_response_tokens,
        temperature=config.eval.temperature,
        top_p=config.eval.top_p,
        stop=tuple(config.rollout.stop),
        stop_token_ids=tuple(eos),
    )


async def evaluate(
    tasks: Mapping[str, Sequence[Task]],
    sampler: Sampler,
    scorer: BundleScorer,
    *,
    sampling: SamplingParams,
    samples: int,
    label: str,
    on_done: Callable[[int, int], None] | None = None,
) -> tuple[dict[str, float], list[Bundle]]:
    """Samples and scores every task.

    Args:
        tasks: by source name.
        samples: trajectories of one task.
        label: makes request ids of two evaluations differ.
        on_done: told (finished, all) after each task.

    Returns:
        Metrics (`rl.metrics.eval_metrics`) and all bundles in order of tasks.
    """
    total, done = sum(len(rows) for rows in tasks.values()), 0

    async def one(source: str, task: Task) -> Bundle:
        nonlocal done
        name = bundle_id(task.task_id, 0)
        request = Request(
            request_id=f"eval:{label}:{source}:{name}",
            task=task,
            kind=SOLUTION,
            draw=0,
            bundle_id=name,
            samples=samples,
            sampling=(sampling,),
            purpose="eval",
        )
        trajectories = await sampler.rollout(request)
        bundle = Bundle(name, task, 0, {SOLUTION: Group(name, SOLUTION, task, samples, trajectories)})
        await scorer.score(bundle)
        done += 1
        if on_done is not None:
            on_done(done, total)
        return bundle

    async with asyncio.TaskGroup() as group:
        jobs = {source: [group.create_task(one(source, task)) for task in rows] for source, rows in tasks.items()}
    by_source = {source: [job.result() for job in rows] for source, rows in jobs.items()}
    return eval_metrics(by_source), [bundle for bundles in by_source.values() for bundle in bundles]
