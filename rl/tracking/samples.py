"""Sampled rollouts as JSONL rows: readable, and complete enough to be scored again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from rl.types import Bundle, Finish, Segment, Task, Trajectory


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


def from_row(row: Mapping[str, Any]) -> tuple[Task, Trajectory]:
    """What rewards read of a saved rollout, or of a plain row with `prompt` and `completion`.

    A plain row's prompt and completion are text or messages; its other entries are the columns.

    Raises:
        KeyError, TypeError, ValueError: the row is no rollout.
    """
    prompt, said = _messages(row["prompt"], "user"), _messages(row["completion"], "assistant")
    plain = "columns" not in row
    columns = {k: v for k, v in row.items() if k not in ("prompt", "completion")} if plain else row["columns"]
    task = Task(str(row.get("task_id", "")), prompt, dict(columns), str(row.get("source", "default")))
    segments = [
        Segment(np.array(s["token_ids"], np.int32), np.array(s["loss_mask"], bool), None)
        for s in ([] if plain else row.get("segments", []))
    ]
    trajectory = Trajectory(
        str(row.get("request_id", "")),
        "" if plain else str(row.get("bundle_id", "")),
        str(row.get("kind", "solution")),
        int(row.get("sample_index", 0)),
        int(row.get("seed", 0)),
        segments,
        (*prompt, *said),
        Finish(row.get("finish", "stop")) if not plain else Finish.STOP,
        len(prompt),
    )
    return task, trajectory


def _messages(value: Any, role: str) -> tuple[Any, ...]:
    if isinstance(value, str):
        return ({"role": role, "content": value},)
    if isinstance(value, Sequence) and all(isinstance(m, Mapping) and "role" in m for m in value):
        return tuple(dict(m) for m in value)
    raise TypeError(f"neither text nor messages: {str(value)[:60]!r}")
