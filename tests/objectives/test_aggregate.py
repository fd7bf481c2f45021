"""Aggregation: definitions, and independence of micro-batches, packing and ranks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.objectives.aggregate import AGGREGATIONS, token_weights
from rl.training.batch import Counts
from tests.objectives.batches import batch, loss_of, objective

ROWS = [[-1.0, -2.0, -3.0], [-4.0], [-5.0, -6.0]]


def weighted(name: str) -> float:
    """Of -A log pi with A = 1, the first two rows one group, the third another."""
    b = batch(ROWS)
    b.group_ids = torch.tensor([0, 0, 1])
    goal = objective(policy_loss="nll", aggregation=name)
    return loss_of(goal, [b], constant=10).item()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token_mean", 21 / 6),
        ("sequence_mean", (2 + 4 + 5.5) / 3),
        ("constant_length", 21 / (3 * 10)),
        ("group_mean", (10 / 4 + 5.5) / 2),
    ],
)
def test_definitions(name, expected):
    assert weighted(name) == pytest.approx(expected)


def test_unknown_name_is_an_error():
    b = batch(ROWS)
    lengths = torch.tensor([3.0, 1.0, 2.0])
    with pytest.raises(ValueError, match="token_mean"):
        token_weights(
            "tokens",
            b.mask,
            b.cu_seqlens,
            trajectory_tokens=lengths,
            group_tokens=lengths,
            counts=Counts(6, 3, 1),
            constant_length=4,
        )


def test_token_mean_does_not_depend_on_the_micro_batch():  # LOSS-13
    goal = objective(policy_loss="reinforce")
    together = batch([[-1.0], [-1.0, -1.0, -1.0]], advantages=[1.0, -1.0])
    apart = [batch([[-1.0]], advantages=[1.0]), batch([[-1.0, -1.0, -1.0]], advantages=[-1.0])]
    assert loss_of(goal, [together]).item() == pytest.approx(0.5)
    assert loss_of(goal, apart).item() == pytest.approx(0.5)


@settings(deadline=None, max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=2, max_size=8),
    order=st.randoms(use_true_random=False),
    name=st.sampled_from(sorted(AGGREGATIONS)),
    per_micro=st.integers(1, 8),
)
def test_loss_and_gradient_do_not_depend_on_the_split(sizes, order, name, per_micro):  # LOSS-14
    generator = torch.Generator().manual_seed(sum(sizes))
    rows = [(-torch.rand(n, generator=generator)).tolist() for n in sizes]
    old = [(-torch.rand(n, generator=generator)).tolist() for n in sizes]
    advantages = torch.randn(len(sizes), generator=generator).tolist()
    goal = objective(aggregation=name, kl_coef=0.1)

    def micro(indices):
        b = batch(
            [rows[i] for i in indices],
            old_logprobs=[old[i] for i in indices],
            ref_logprobs=[old[i] for i in indices],
            advantages=[advantages[i] for i in indices],
        )
        b.group_ids = torch.tensor([i % 2 for i in indices])
        return b

    def run(parts):
        made = [micro(p) for p in parts]
        loss = loss_of(goal, made)
        loss.backward()
        slopes = {}
        for indices, b in zip(parts, made, strict=True):
            bounds = b.cu_seqlens.tolist()
            for i, s, e in zip(indices, bounds[:-1], bounds[1:], strict=True):
                slopes[i] = b.logprobs.grad[s:e]
        return loss.item(), torch.cat([slopes[i] for i in range(len(sizes))])

    everything = list(range(len(sizes)))
    whole, slope = run([everything])
    order.shuffle(everything)
    split, pieces = run([everything[i : i + per_micro] for i in range(0, len(sizes), per_micro)])
    assert split == pytest.approx(whole, rel=1e-9, abs=1e-12)
    assert torch.allclose(pieces, slope, rtol=1e-9, atol=1e-12)
