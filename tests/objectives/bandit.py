"""A bandit of a few arms with exact expectations: every arm is a segment, weighted with its probability."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rl.objectives.base import Objective
from tests.objectives.batches import DOUBLE, batch, objective

# Five arms of the specification.
REFERENCE = [0.5, 0.3, 0.15, 0.04, 0.01]
REWARD = [0.0, 1.0, 0.0, 1.0, 1.0]
Q = [0.6, 0.8, 1.0, 1.2, 1.4]


def expected_gradient(
    goal: Objective, logits: torch.Tensor, reference: Sequence[float], reward: Sequence[float], in_reward: bool = False
) -> torch.Tensor:
    """Gradient of the expected loss in the logits, on policy: weights and old log-probs are constants."""
    logits = logits.detach().clone().requires_grad_()
    logprobs = torch.log_softmax(logits, 0)
    frozen = logprobs.detach()
    arms = len(reference)
    b = batch(
        [[0.0]] * arms,
        ref_logprobs=[[float(np.log(p))] for p in reference],
        old_logprobs=[[x] for x in frozen.tolist()],
        advantages=list(reward),
    )
    b.logprobs = torch.stack([logprobs.new_zeros(arms), logprobs], 1).flatten()
    if in_reward:
        advantages = goal.token_advantages(b, lambda x: x)
        b.advantages = advantages
    loss = goal.token_loss(b).loss.reshape(arms, 2)[:, 1]
    (slope,) = torch.autograd.grad((frozen.exp() * loss).sum(), logits)
    return slope


def optimum(
    goal: Objective, reference: Sequence[float], reward: Sequence[float], in_reward: bool = False
) -> np.ndarray:
    """Where the expected gradient is zero: descent from the reference, then Newton steps, last logit 0."""

    def slopes(free: np.ndarray) -> np.ndarray:
        logits = torch.tensor([*free, 0.0], dtype=DOUBLE)
        return expected_gradient(goal, logits, reference, reward, in_reward).numpy()

    full = np.log(reference)
    for _ in range(100):  # natural gradient: rare arms move as fast as common ones
        full = full - 0.5 * slopes(full[:-1] - full[-1]) / np.exp(full - np.log(np.exp(full).sum()))
    free = full[:-1] - full[-1]
    for _ in range(3):
        columns = [(slopes(free + d) - slopes(free - d))[:-1] / 2e-5 for d in 1e-5 * np.eye(len(free))]
        free = free - np.linalg.solve(np.array(columns).T, slopes(free)[:-1])
    assert np.abs(slopes(free)).max() < 1e-13
    return torch.softmax(torch.tensor([*free, 0.0], dtype=DOUBLE), 0).numpy()


def ascend(goal: Objective, reference: Sequence[float], reward: Sequence[float], rate: float, steps: int) -> np.ndarray:
    """Plain gradient descent on the expected loss, from the reference."""
    logits = torch.tensor(np.log(reference), dtype=DOUBLE)
    for _ in range(steps):
        logits = logits - rate * expected_gradient(goal, logits, reference, reward)
    return torch.softmax(logits, 0).numpy()


def guided(folder: Any, q: Sequence[float], estimator: str, beta: float, **settings: Any) -> Objective:
    """An objective whose guide gives each arm its own q, by segment."""
    file = folder / f"fixed_{abs(hash(tuple(q)))}.py"
    file.write_text(
        "import torch\nfrom rl.objectives.segments import spread\n"
        f"Q = torch.tensor({list(q)!r}, dtype=torch.float64)\n"
        "def fixed(batch):\n"
        "    if len(batch.sample_ids) != len(Q):\n        return batch.mask * 0\n"
        "    return spread(Q.log(), batch)\n"
    )
    return objective(policy_loss="reinforce", kl_coef=beta, kl_estimator=estimator, guide=f"{file}:fixed", **settings)
