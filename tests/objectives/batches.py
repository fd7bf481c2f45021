"""Token batches, bundles and the trainer's sums, made by hand for tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl.config.schema import AlgorithmConfig
from rl.objectives import build
from rl.objectives.aggregate import token_weights
from rl.objectives.base import Objective, TokenBatch
from rl.training.batch import Counts
from rl.types import SOLUTION, Bundle, Finish, Group, Segment, Task, Trajectory

DOUBLE = torch.float64


def objective(max_response_tokens: int = 16, **settings: Any) -> Objective:
    return build(AlgorithmConfig(**settings), max_response_tokens=max_response_tokens)


def batch(logprobs: Sequence[Sequence[float]], **fields: Any) -> TokenBatch:
    """One segment a list of response tokens, each after one prompt token of mask 0.

    Fields given as lists of lists fill the response tokens; prompt tokens get 0. ``advantages`` is one
    number a segment.
    """
    sizes = [len(row) for row in logprobs]

    def tokens(rows: Sequence[Sequence[float]]) -> Tensor:
        return torch.tensor([x for row in rows for x in (0.0, *row)], dtype=DOUBLE)

    values = {
        name: tokens(value) if isinstance(value, list) and value and isinstance(value[0], list) else value
        for name, value in fields.items()
    }
    advantages = values.pop("advantages", [1.0] * len(sizes))
    mask = tokens([[1.0] * n for n in sizes])
    current = tokens(logprobs).requires_grad_()
    per_token = torch.repeat_interleave(torch.tensor(advantages, dtype=DOUBLE), torch.tensor([n + 1 for n in sizes]))
    defaults: dict[str, Any] = {
        "logprobs": current,
        "mask": mask,
        "advantages": per_token * mask,
        "rollout_logprobs": current.detach().clone(),
        "old_logprobs": current.detach().clone(),
        "cu_seqlens": torch.tensor(np.cumsum([0] + [n + 1 for n in sizes]), dtype=torch.int32),
        "sample_ids": torch.arange(len(sizes)) + 100,
        "kind_ids": torch.zeros(len(sizes), dtype=torch.int64),
        "temperature": torch.ones(len(sizes)),
        "step": 1,
        "run_seed": 7,
        "group_ids": torch.zeros(len(sizes), dtype=torch.int64),
        "groups": 1,
    }
    return TokenBatch(**(defaults | values))


def responses(values: Tensor, b: TokenBatch) -> list[list[float]]:
    """``[T]`` as lists of the trained tokens of each segment."""
    bounds = b.cu_seqlens.tolist()
    return [values[s:e][b.mask[s:e] > 0].detach().tolist() for s, e in itertools.pairwise(bounds)]


def counts_of(batches: Sequence[TokenBatch]) -> Counts:
    """Each segment a trajectory, each group id a group."""
    groups = {int(g) for b in batches for g in b.group_ids}
    return Counts(int(sum(b.mask.sum() for b in batches)), sum(len(b.sample_ids) for b in batches), len(groups))


def loss_of(goal: Objective, batches: Sequence[TokenBatch], *, constant: int = 16) -> Tensor:
    """The trainer's arithmetic: weighted sums over micro-batches with global counts."""
    counts = counts_of(batches)
    group_tokens: dict[int, float] = {}
    for b in batches:
        for g, n in zip(b.group_ids.tolist(), _per_segment(b), strict=True):
            group_tokens[g] = group_tokens.get(g, 0) + n
    total = torch.zeros((), dtype=DOUBLE)
    for b in batches:
        weights = token_weights(
            goal.aggregation,
            b.mask,
            b.cu_seqlens,
            trajectory_tokens=torch.tensor(_per_segment(b)),
            group_tokens=torch.tensor([group_tokens[g] for g in b.group_ids.tolist()]),
            counts=counts,
            constant_length=constant,
        )
        loss = goal.token_loss(b).loss
        total = total + (torch.where(b.mask > 0, loss, torch.zeros_like(loss)) * weights).sum()
    return total


def gradient(goal: Objective, b: TokenBatch, **options: Any) -> list[list[float]]:
    """d loss / d log-prob of each trained token."""
    b.logprobs.grad = None
    loss_of(goal, [b], **options).backward()
    assert b.logprobs.grad is not None
    return responses(b.logprobs.grad, b)


def trajectory(
    reward: float | None,
    index: int,
    *,
    task: str = "t",
    tokens: int = 3,
    finish: Finish = Finish.STOP,
    prompt: int = 1,
    segments: int = 1,
    text: str = "",
    **rewards: float | None,
) -> Trajectory:
    rows = [
        Segment(
            np.arange(prompt + tokens, dtype=np.int32),
            np.arange(prompt + tokens) >= prompt,
            np.full(prompt + tokens, -1.0, np.float32),
        )
        for _ in range(segments)
    ]
    messages = ({"role": "assistant", "content": text},)
    t = Trajectory("r", f"{task}#0", SOLUTION, index, index, rows, messages, finish)
    t.reward, t.outcome, t.rewards = reward, reward, dict(rewards)
    return t


def bundle(task: str, rewards: Sequence[float | None], change: Callable[[Trajectory], None] | None = None) -> Bundle:
    made = Bundle(f"{task}#0", Task(task, ()), 0)
    members = [trajectory(r, i, task=task) for i, r in enumerate(rewards)]
    for t in members:
        if change is not None:
            change(t)
    made.groups[SOLUTION] = Group(made.bundle_id, SOLUTION, made.task, len(members), members)
    return made


def advantages_of(goal: Objective, bundles: Sequence[Bundle]) -> dict[tuple[str, int], float | str]:
    """Advantage, or reason of the drop, by (task, sample)."""
    return {
        (name.removesuffix("#0"), index): verdict.drop or verdict.advantage
        for (name, _, index), verdict in goal.weights(bundles).items()
    }


def _per_segment(b: TokenBatch) -> list[float]:
    bounds = b.cu_seqlens.tolist()
    return [float(b.mask[s:e].sum()) for s, e in itertools.pairwise(bounds)]
