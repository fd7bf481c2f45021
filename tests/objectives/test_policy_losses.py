"""Policy losses against numbers by hand and independent NumPy versions; extreme ratios."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rl.objectives.policy_losses import POLICY_LOSSES
from tests.objectives.batches import batch, gradient, loss_of, objective, responses

NEW = [[-0.5, -2.0, -1.0], [-0.1, -3.0]]
OLD = [[-0.95, -1.2, -1.1], [-0.6, -2.5]]


def term(name: str, ratio: float, advantage: float, **options: float) -> float:
    b = batch([[math.log(ratio) - 1]], old_logprobs=[[-1.0]], advantages=[advantage])
    return responses(POLICY_LOSSES[name](b, **options).loss, b)[0][0]


@pytest.mark.parametrize(
    ("ratio", "advantage", "options", "loss"),
    [
        (2.0, 1.0, {"clip_high": 0.28}, -1.28),  # LOSS-19
        (0.5, -1.0, {"clip_low": 0.2}, 0.8),
        (0.5, 1.0, {}, -0.5),
        (2.0, -1.0, {}, 2.0),
        (0.5, 1.0, {"dual_clip": 3.0}, -0.5),  # LOSS-20
        (10.0, -1.0, {"dual_clip": 3.0}, 3.0),
        (10.0, -1.0, {}, 10.0),
    ],
)
def test_ppo_clip(ratio, advantage, options, loss):
    assert term("ppo_clip", ratio, advantage, **options) == pytest.approx(loss)


def test_cispo_weights_are_clipped_and_detached():
    b = batch([[math.log(8.0) - 1], [-3.0]], old_logprobs=[[-1.0], [-1.0]], advantages=[1.0, 1.0])
    out = POLICY_LOSSES["cispo"](b, cap=5.0)
    assert responses(out.loss, b) == [[pytest.approx(-5 * (math.log(8) - 1))], [pytest.approx(3 * math.exp(-2))]]
    out.loss.sum().backward()
    assert responses(b.logprobs.grad, b) == [[pytest.approx(-5.0)], [pytest.approx(-math.exp(-2))]]


def numpy_loss(name: str, new, old, advantages) -> float:
    """Mean over sequences of their terms, straight from the papers."""
    terms = []
    for n, o, a in zip(map(np.array, new), map(np.array, old), advantages, strict=True):
        ratios = np.exp(n - o)
        if name == "gspo":
            s = np.exp((n - o).mean())
            terms.append(-min(s * a, np.clip(s, 0.9, 1.2) * a))
        elif name == "gmpo":
            low, high = math.exp(-0.4), math.exp(0.4)
            least = np.minimum(ratios * a, np.clip(ratios, low, high) * a)
            terms.append(-np.sign(a) * np.prod(np.abs(least)) ** (1 / len(n)))
        elif name == "reinforce":
            terms.append(np.mean(-ratios * a))
        elif name == "nll":
            terms.append(np.mean(-n * a))
        else:
            terms.append(np.mean(-np.minimum(ratios * a, np.clip(ratios, 0.8, 1.2) * a)))
    return float(np.mean(terms))


@pytest.mark.parametrize("advantages", [[1.0, -1.0], [-1.0, 1.0]])
@pytest.mark.parametrize(
    ("name", "options"),
    [("ppo_clip", {}), ("reinforce", {}), ("nll", {}), ("gmpo", {}), ("gspo", {"clip_low": 0.1, "clip_high": 0.2})],
)
def test_against_numpy(name, options, advantages):
    goal = objective(policy_loss=name, policy_loss_options=options, aggregation="sequence_mean")
    b = batch(NEW, old_logprobs=OLD, advantages=advantages)
    assert loss_of(goal, [b]).item() == pytest.approx(numpy_loss(name, NEW, OLD, advantages), rel=1e-12)
    for i, row in enumerate(gradient(goal, b)):  # central differences of the NumPy version
        for t, slope in enumerate(row):
            ends = []
            for step in (1e-6, -1e-6):
                moved = [list(r) for r in NEW]
                moved[i][t] += step
                ends.append(numpy_loss(name, moved, OLD, advantages))
            assert slope == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-8)


@pytest.mark.parametrize("name", sorted(POLICY_LOSSES))
def test_extreme_ratios_are_finite_and_counted(name):
    goal = objective(policy_loss=name, kl_coef=0.1)
    infinite = float("inf")
    b = batch(
        [[-1.0, -900.0, -1.0]],
        old_logprobs=[[-900.0, -1.0, -1.0]],
        ref_logprobs=[[-infinite, -1.0, -1.0]],
        advantages=[1.0],
    )
    out = goal.token_loss(b)
    loss = loss_of(goal, [b])
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(b.logprobs.grad).all()
    total, count = out.metrics["policy/ratio_clamped_share"]
    assert (float(total), float(count)) == (2.0, 3.0)


@pytest.mark.parametrize("name", sorted(POLICY_LOSSES))
def test_rows_without_trained_tokens(name):  # LOSS-10
    goal = objective(policy_loss=name)
    b, empty = batch([[-1.0], [-2.0]]), batch([[-5.0, -5.0]])
    empty.mask = torch.zeros_like(empty.mask)
    empty.logprobs = torch.full_like(empty.mask, float("nan")).requires_grad_()
    alone = loss_of(goal, [b])
    both = loss_of(goal, [b, empty])
    scale = alone.item() / both.item()  # the empty row is one more sequence and no token
    assert torch.isfinite(both) and scale == pytest.approx(1.0)
    total = loss_of(goal, [empty])
    total.backward()
    assert total.item() == 0
    assert all(not torch.isnan(s) and not torch.isnan(c) for s, c in goal.token_loss(empty).metrics.values())


def test_ratio_is_frozen_over_updates():  # LOSS-21
    """Two updates of a two-armed bandit from one batch: the second one's ratios are not 1, and a large step clips."""
    theta = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    old = torch.log_softmax(theta, 0).detach()
    goal = objective()
    seen = []
    for _ in range(2):
        logits = torch.log_softmax(theta, 0)
        b = batch([[0.0], [0.0]], old_logprobs=[[old[0].item()], [old[1].item()]], advantages=[1.0, -1.0])
        b.logprobs = torch.stack([torch.zeros(()), logits[0], torch.zeros(()), logits[1]])
        out = goal.token_loss(b)
        seen.append((out.maxima["policy/ratio_max"].item(), float(out.metrics["policy/clip_fraction_high"][0])))
        (slope,) = torch.autograd.grad(loss_of(goal, [b]), theta)
        with torch.no_grad():
            theta -= 1.0 * slope
    assert seen[0] == (pytest.approx(1.0), 0.0)
    assert seen[1][0] == pytest.approx(2 * torch.softmax(theta.detach() * 0 + torch.tensor([0.5, -0.5]), 0)[0].item())
    assert seen[1][1] == 1.0


def test_metrics_are_sums_and_counts():  # ORCH-15
    b = batch(NEW, old_logprobs=OLD, advantages=[1.0, -1.0])
    out = objective().token_loss(b)
    ratios = np.exp(np.concatenate([np.subtract(n, o) for n, o in zip(NEW, OLD, strict=True)]))
    assert [float(x) for x in out.metrics["policy/ratio_mean"]] == pytest.approx([ratios.sum(), 5])
    assert float(out.maxima["policy/ratio_max"]) == pytest.approx(ratios.max())
    assert float(out.minima["policy/ratio_min"]) == pytest.approx(ratios.min())
    assert float(out.metrics["policy/clip_fraction_high"][0]) == 1  # 1.57 at A > 0; 1.65 at A < 0 is not clipped
    assert float(out.metrics["policy/clip_fraction_low"][0]) == 1  # 0.61 at A < 0; 0.45 at A > 0 is not
    drift = (ratios - 1 - np.log(ratios)).sum()
    assert float(out.metrics["policy/kl"][0]) == pytest.approx(drift)
