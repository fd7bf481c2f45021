"""Sampled rollouts as JSONL rows: readable, and complete enough to be scored again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from rl.types import Bundle, Segment, Task, Trajectory


def sample_rows(step: int, bundles: Sequence[Bundle], purpose: str, limit: int) -> list[dict[str, Any]]:
    """Rows of at most ``limit`` trajectories: one of each bundle first, then a second of each, and so on."""
    return [_row(step, purpose, bundle, t) for bundle, t in islice(_spread(bundles), limit)]


def _spread(bundles: Sequence[Bundle]) -> Iterator[tuple[Bundle, Trajectory]]:
    lists = [(bundle, bundle.trajectories) for bundle in bundles]
    for i in range(max((len(rows) for _, rows in lists), default=0)):
        for bundle, rows in lists:
            if i < len(rows):
                yield bundle, rows[i]


def _row(step: int, purpose: str, bundle: Bundle, trajectory: Trajectory) -> dict[str, Any]:
    group = bundle.groups.get(trajectory.kind)
    task: Task = group.task if group is not None else bundle.task
    versions = [span.version for segment in trajectory.segments for span in segment.version_spans]
    return {
        "step": step,
        "purpose": purpose,
        "version": max(versions, default=None),
        "task_id": task.task_id,
        "source": task.source,
        "bundle_id": bundle.bundle_id,
        "request_id": trajectory.request_id,
        "kind": trajectory.kind,
        "draw": bundle.draw,
        "sample_index": trajectory.sample_index,
        "seed": trajectory.seed,
        "prompt": trajectory.messages[: trajectory.prompt_messages],
        "completion": trajectory.completion,
        "finish": str(trajectory.finish),
        "reward": trajectory.reward,
        "outcome": trajectory.outcome,
        "rewards": trajectory.rewards,
        "turn_rewards": trajectory.turn_rewards,
        "response_tokens": trajectory.response_tokens,
        "metrics": trajectory.metrics,
        "error": trajectory.error,
        "task_rewards": task.rewards,
        "columns": task.columns,
        "segments": [_segment(segment) for segment in trajectory.segments],
    }


def _segment(segment: Segment) -> dict[str, Any]:
    return {
        "token_ids": segment.token_ids,
        "loss_mask": segment.loss_mask.astype(int),
        "logprobs": segment.logprobs,
        "version_spans": segment.version_spans,
        "turn_spans": segment.turn_spans,
        "temperature": segment.temperature,
    }
