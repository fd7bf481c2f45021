"""Reward carries a signal: a small softmax policy learns to jump before it answers; noise teaches nothing."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import numpy as np
import pytest

from envs.base import Action, Limits
from envs.parsing import parse_tool_calls
from envs.repo_navigator.backend import CachedBackend, ProcessBackend
from envs.repo_navigator.environment import RepoNavigator
from envs.repo_navigator.snapshot import SnapshotStore
from rl.types import Task

TASK = Task(
    "t",
    ({"role": "user", "content": "The sheet of ledger/__main__.py is empty."},),
    {"repository": "bundled:ledger", "gold": ["ledger/report.py::balance_sheet"]},
)
MOVES = ["guess", "Book", "parse_money", "balance_sheet", "answer"]
"""Answer with the entry's own function, jump to one of three names, answer with what was seen last."""


async def episode(
    env: RepoNavigator, logits: np.ndarray, rng: np.random.Generator
) -> tuple[list[tuple[int, int]], float]:
    limits = Limits(6000, lambda text: len(text) // 4, time.monotonic() + 60)
    await env.reset(TASK, seed=0, limits=limits)
    path: list[tuple[int, int]] = []
    for _ in range(4):
        state = int(env.calls > 0)
        p = np.exp(logits[state] - logits[state].max())
        move = int(rng.choice(len(MOVES), p=p / p.sum()))
        path.append((state, move))
        if MOVES[move] in ("guess", "answer"):
            seen = env.seen[-1].location if env.seen else "ledger/__main__.py::main"
            said = "ledger/__main__.py::main" if MOVES[move] == "guess" else seen
            result = await env.step(Action(f"\\boxed{{{said}}}"), limits=limits)
            return path, sum(result.rewards.values())
        arguments = {"symbol": MOVES[move], "file_path": "ledger/__main__.py"}
        text = f"<tool_call>{json.dumps({'name': 'jump', 'arguments': arguments})}</tool_call>"
        await env.step(Action(text, parse_tool_calls(text, "hermes")), limits=limits)
    return path, 0.0


async def train(make: Any, *, shuffled: bool) -> tuple[float, float, np.ndarray]:
    """Group-normalised policy gradient; mean reward of the first and the last five groups, and the policy."""
    rng, logits, means = np.random.default_rng(0), np.zeros((2, len(MOVES))), []
    for _ in range(40):
        played = [await episode(make(), logits, rng) for _ in range(16)]
        rewards = np.array([r for _, r in played])
        means.append(rewards.mean())
        given = rng.permutation(rewards) if shuffled else rewards
        advantages = (given - given.mean()) / (given.std() + 1e-6)
        gradient = np.zeros_like(logits)
        for (path, _), advantage in zip(played, advantages, strict=True):
            for state, move in path:
                p = np.exp(logits[state] - logits[state].max())
                gradient[state] -= advantage * p / p.sum()
                gradient[state, move] += advantage
        logits += 0.5 * gradient / len(played)
    return float(np.mean(means[:5])), float(np.mean(means[-5:])), logits


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_tiny_policy_learns_to_jump_first(store: SnapshotStore, backend: ProcessBackend, shuffled: bool) -> None:
    cached = CachedBackend(backend)

    def make() -> RepoNavigator:
        return RepoNavigator(snapshots=str(store.folder), backend=cached)

    before, after, logits = asyncio.run(train(make, shuffled=shuffled))
    if shuffled:
        assert after < 0.7
    else:
        assert before < 0.6 and after > 1.0
        assert MOVES[int(logits[0].argmax())] == "balance_sheet" and MOVES[int(logits[1].argmax())] == "answer"
