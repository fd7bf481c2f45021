"""GAE, returns, KL in the reward, distillation, masks, corrections and the entropy bonus."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.objectives.joined import join, prepare, split
from rl.objectives.kl import full_forward, full_reverse
from rl.objectives.masks import quantile, top_entropy
from rl.objectives.token_advantages import TOKEN_ADVANTAGES, broadcast, distill, gae, returns, whitened
from tests.objectives.batches import batch, loss_of, objective, responses


def alone(x):
    return x


def gappy(mask, **fields):
    """One segment whose trained tokens are given by a mask, the prompt token before it included."""
    b = batch([[0.0] * len(mask)], **fields)
    b.mask = torch.tensor([0.0, *map(float, mask)], dtype=torch.float64)
    b.advantages = b.advantages * b.mask
    return b


def test_gae_ignores_values_outside_the_mask():  # LOSS-23
    b = gappy([1, 1, 0], values=[[0.2, 0.5, 50.0]], advantages=[1.0])
    assert responses(gae(b, alone, None, whiten=False), b) == [pytest.approx([0.775, 0.5])]
    assert responses(b.extra["returns"], b) == [pytest.approx([0.975, 1.0])]


def test_gae_does_not_cross_segments():  # LOSS-24
    values, rewards = [[0.1, 0.4], [0.3, -0.2, 0.6]], [2.0, -1.0]
    packed = batch([[0.0] * 2, [0.0] * 3], values=values, advantages=rewards)
    got = responses(gae(packed, alone, None, gamma=0.9, lam=0.8, whiten=False), packed)
    for row, reward, expected in zip(values, rewards, got, strict=True):
        single = batch([[0.0] * len(row)], values=[row], advantages=[reward])
        assert responses(gae(single, alone, None, gamma=0.9, lam=0.8, whiten=False), single) == [
            pytest.approx(expected)
        ]


@settings(deadline=None, max_examples=30)
@given(
    values=st.lists(st.floats(-2, 2), min_size=1, max_size=8),
    gamma=st.floats(0, 1),
    lam=st.floats(0, 1),
    reward=st.floats(-3, 3),
)
def test_gae_is_the_weighted_sum_of_temporal_differences(values, gamma, lam, reward):
    b = batch([[0.0] * len(values)], values=[values], advantages=[reward])
    rewards = [0.0] * (len(values) - 1) + [reward]
    after = [*values[1:], 0.0]
    delta = [r + gamma * n - v for r, n, v in zip(rewards, after, values, strict=True)]
    expected = [sum((gamma * lam) ** (k - t) * delta[k] for k in range(t, len(values))) for t in range(len(values))]
    assert responses(gae(b, alone, None, gamma=gamma, lam=lam, whiten=False), b)[0] == pytest.approx(expected, abs=1e-9)


def test_token_level_kl_reward_skips_tool_text():  # LOSS-32
    b = gappy([1, 0, 1], advantages=[1.0])
    kl = torch.tensor([0.0, 0.1, 5.0, 0.1], dtype=torch.float64)
    assert responses(returns(b, alone, kl, whiten=False), b) == [pytest.approx([0.8, 0.9])]


@pytest.mark.parametrize(("mask", "last"), [([1, 1, 1, 0, 0], 2), ([1, 1, 1, 1, 1], 4), ([1, 0, 0, 1, 0], 3)])
def test_terminal_reward_is_on_the_last_trained_token(mask, last):  # LOSS-25
    b = gappy(mask, advantages=[3.0])
    got = returns(b, alone, None, gamma=0.0, whiten=False)
    assert got.nonzero().flatten().tolist() == [1 + last] and got[1 + last] == 3.0


def test_reinforce_pp_normalises_over_the_global_batch():
    b = batch([[0.0], [0.0, 0.0]], advantages=[1.0, 0.0])
    got = responses(returns(b, alone, None), b)
    std = np.std([1.0, 0.0, 0.0])
    assert got == [pytest.approx([(2 / 3) / std]), pytest.approx([(-1 / 3) / std] * 2)]
    equal = batch([[0.0], [0.0, 0.0]], advantages=[0.1, 0.1])
    assert responses(returns(equal, alone, None), equal) == [[0.0], [0.0, 0.0]]


def test_whitening_over_ranks():
    """Two ranks that sum over each other get what one rank with all rows gets."""
    values, mask = torch.tensor([1.0, 2.0, 4.0, 9.0], dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    whole = whitened(values, mask, alone)
    shares = [(values[:1], mask[:1]), (values[1:], mask[1:])]
    calls: list[list[torch.Tensor]] = []

    def rank(v, m, others):
        step = iter(others)

        def reduce(x):
            calls[-1].append(x)
            return x + next(step, torch.zeros_like(x))

        return whitened(v, m, reduce)

    # The sums of the other rank are known once it has run; the mean needs one more round.
    known: list[list[torch.Tensor]] = [[], []]
    for _ in range(3):
        for me in (0, 1):
            calls.append([])
            result = rank(*shares[me], known[1 - me])
            known[me] = calls[-1]
            assert len(calls[-1]) == 2
            if me == 0:
                first = result
    assert torch.allclose(torch.cat([first, result]), whole)
    assert whole.mean() == pytest.approx(0, abs=1e-12) and whole.std(correction=0) == pytest.approx(1)


def test_kl_in_the_reward_of_broadcast_cancels_what_a_group_shares():
    """A + s - mean of s in the group, with s summed over all segments of a trajectory."""
    b = batch([[0.0, 0.0], [0.0], [0.0]], advantages=[1.0, 1.0, -1.0])
    b.sample_ids = torch.tensor([5, 5, 6])  # the first trajectory has two segments
    kl = torch.tensor([0, 0.1, 0.2, 0, 0.3, 0, 0.2], dtype=torch.float64)
    s = np.array([-0.6, -0.2])
    expected = np.array([1.0, -1.0]) + s - s.mean()
    assert responses(broadcast(b, alone, kl), b) == [
        pytest.approx([expected[0]] * 2),
        pytest.approx([expected[0]]),
        pytest.approx([expected[1]]),
    ]
    s = np.array([-0.6 / 3, -0.2])
    expected = np.array([1.0, -1.0]) + s - s.mean()
    got = responses(broadcast(b, alone, kl, per_token=True), b)
    assert got[1] == pytest.approx([expected[0]]) and got[2] == pytest.approx([expected[1]])


def test_kl_in_the_reward_lowers_it_where_the_policy_is_above_the_reference():  # LOSS-18
    settings_ = {"kl_coef": 0.1, "kl_estimator": "k1", "kl_in": "reward"}
    b = batch([[-1.0], [-1.0]], ref_logprobs=[[-2.0], [-1.0]], advantages=[0.0, 0.0])
    got = responses(objective(**settings_).token_advantages(b, alone), b)
    assert got == [pytest.approx([-0.05]), pytest.approx([0.05])]
    b = batch([[-1.0], [-1.0]], ref_logprobs=[[-1.0], [-1.0]], advantages=[0.5, -0.5])
    assert responses(objective(**settings_).token_advantages(b, alone), b) == [[0.5], [-0.5]]


def test_kl_in_the_loss_has_the_mask_and_reduction_of_the_policy_term():  # LOSS-18
    goal = objective(kl_coef=0.1, kl_estimator="k1")
    b = gappy([1, 1, 0], ref_logprobs=[[-0.2, -0.2, -9.0]], advantages=[0.0])
    assert loss_of(goal, [b]).item() == pytest.approx(0.02)
    same = gappy([1, 1, 0], ref_logprobs=[[0.0, 0.0, -9.0]], advantages=[0.0])
    assert loss_of(goal, [same]).item() == 0.0


def test_distillation():
    b = batch([[-1.0, -2.0]], teacher_logprobs=[[-0.5, -3.0]], advantages=[0.0])
    assert responses(distill(b, alone, None, coef=2.0), b) == [pytest.approx([1.0, -2.0])]
    goal = objective(advantage="none", token_advantage="distill", policy_loss="reinforce")
    assert not goal.needs_reward and goal.signals == {"teacher_logprobs", "old_logprobs"}


@pytest.mark.parametrize("name", sorted(TOKEN_ADVANTAGES))
def test_a_rank_without_trained_tokens(name):
    b = batch([[-1.0]], values=[[0.0]], teacher_logprobs=[[0.0]])
    b.mask = torch.zeros_like(b.mask)
    b.advantages = b.advantages * 0
    for kl in (None, torch.zeros_like(b.mask)):
        assert TOKEN_ADVANTAGES[name](b, alone, kl).tolist() == [0.0, 0.0]


def test_value_loss_and_critic_warm_up():
    b = batch([[-1.0, -1.0]], values=[[0.2, 1.5]], advantages=[1.0])
    goal = objective(
        advantage="raw",
        token_advantage="gae",
        token_advantage_options={"whiten": False, "lam": 1.0},
        value_coef=0.5,
        value_clip=0.1,
        critic_warmup_steps=1,
    )
    b.advantages = goal.token_advantages(b, alone)
    moved = dataclasses.replace(b, values=b.values + torch.tensor([0.0, 0.5, -0.05], dtype=torch.float64))
    # Returns are 1; new values 0.7 and 1.45, kept within 0.3 and 1.45: the larger losses are 0.245 and 0.10125.
    wanted = 0.5 * (0.245 + 0.10125) / 2
    assert loss_of(goal, [moved]).item() == pytest.approx(wanted)
    later = dataclasses.replace(moved, step=2)
    assert loss_of(goal, [later]).item() == pytest.approx(wanted - (0.8 - 0.5) / 2)  # -A of the two tokens
    out = goal.token_loss(moved)
    assert float(out.metrics["value/clip_fraction"][0]) == 1.0


OLD, ROLLOUT = [[-1.0, -1.0, -1.0], [-2.0]], [[-1.0, -2.0, 0.0], [-1.0]]


@pytest.mark.parametrize(
    ("name", "options", "weights", "changed"),
    [
        ("tis_token", {"cap": 2.0}, [[1.0, 2.0, math.exp(-1)], [math.exp(-1)]], 1),
        ("tis_sequence", {"cap": 0.9}, [[0.9] * 3, [math.exp(-1)]], 3),
        ("mis_token", {"low": 0.5, "high": 2.0}, [[1.0, 0.0, 0.0], [0.0]], 3),
        ("mis_sequence", {"low": 0.5, "high": 2.0}, [[1.0] * 3, [0.0]], 1),
    ],
)
def test_corrections_weigh_the_policy_term_alone(name, options, weights, changed):
    fields = {"old_logprobs": OLD, "rollout_logprobs": ROLLOUT, "ref_logprobs": [[-1.5] * 3, [-1.0]]}
    b = batch(OLD, advantages=[1.0, 1.0], **fields)
    plain, kl = objective(policy_loss="reinforce"), objective(policy_loss="reinforce", kl_coef=0.1)
    both = objective(policy_loss="reinforce", kl_coef=0.1, correction=name, correction_options=options)
    kl_part = responses(kl.token_loss(b).loss - plain.token_loss(b).loss, b)
    got = responses(both.token_loss(b).loss, b)
    for row, w, k in zip(got, weights, kl_part, strict=True):
        assert row == pytest.approx([-x + y for x, y in zip(w, k, strict=True)])
    total, count = both.token_loss(b).metrics["correction/changed_share"]
    assert (float(total), float(count)) == (changed, 4.0)


@settings(deadline=None, max_examples=30)
@given(values=st.lists(st.floats(0, 12), min_size=1, max_size=40), q=st.sampled_from([0.0, 0.2, 0.5, 0.8, 0.95]))
def test_quantile_counts(values, q):
    limit = quantile(torch.tensor(values, dtype=torch.float64), torch.ones(len(values)), q, alone)
    below = sum(v < limit for v in values)
    assert below <= q * len(values) < sum(v < limit + 2e-6 for v in values) + 1


def test_entropy_mask_keeps_the_top_share_of_the_global_batch():
    parts = [batch([[0.0] * 4], entropy=[[0.1, 2.0, 0.3, 0.2]]), batch([[0.0]], entropy=[[3.0]])]
    whole = join(parts)
    kept = split(top_entropy(whole, alone, 0.4), parts)
    assert [responses(k, p) for k, p in zip(kept, parts, strict=True)] == [[[0, 1, 0, 0]], [[1]]]
    goal = objective(top_entropy_share=0.4, policy_loss="nll")
    whole.advantages = goal.token_advantages(whole, alone)
    out = goal.token_loss(whole)
    assert [float(x) for x in out.metrics["policy/masked_share"]] == [3.0, 5.0]  # numerator only: 5 still count


def test_join_and_split_are_inverse():
    parts = [batch([[-1.0, -2.0], [-3.0]]), batch([[-4.0]], sample_ids=torch.tensor([9]))]
    whole = join(parts)
    assert whole.cu_seqlens.tolist() == [0, 3, 5, 7] and whole.sample_ids.tolist() == [100, 101, 9]
    assert [x.tolist() for x in split(whole.logprobs, parts)] == [p.logprobs.tolist() for p in parts]
    assert whole.ref_logprobs is None and not whole.logprobs.requires_grad


def test_prepare_sees_the_whole_step_and_spare_rows_change_nothing():
    """KL in the reward over three micro-batches, one of them a spare row without trained tokens."""
    goal = objective(kl_coef=1.0, kl_estimator="k1", kl_in="reward", guide="novelty", top_entropy_share=0.5)
    parts = [
        batch([[-1.0]], ref_logprobs=[[-1.2]], entropy=[[1.0]], advantages=[0.0], sample_ids=torch.tensor([1])),
        batch([[-1.0]], ref_logprobs=[[-1.6]], entropy=[[2.0]], advantages=[0.0], sample_ids=torch.tensor([2])),
    ]
    for part, novelty in zip(parts, (0.2, 1.0), strict=True):
        part.features = {"novelty": torch.tensor([novelty])}
    spare = batch([[0.0]], ref_logprobs=[[0.0]], entropy=[[0.0]], sample_ids=torch.tensor([0]))
    spare.mask = torch.zeros_like(spare.mask)
    spare.advantages = spare.advantages * 0
    expected = [-0.2 + 0.1, -0.6 + 0.5]  # s = -(log pi - log ref - log q), kappa 0.5
    mean = sum(expected) / 2
    got = prepare(goal, [*parts, spare], alone)
    for (advantages, extra), part, value, kept in zip(got, parts, expected, (0.0, 1.0), strict=False):
        assert responses(advantages, part) == [pytest.approx([value - mean], abs=1e-7)]
        assert responses(extra["policy_mask"], part) == [[kept]]
    assert got[2][0].tolist() == [0.0, 0.0] and prepare(goal, [], alone) == []


def test_fixed_entropy_bonus_has_the_entropys_gradient():
    goal = objective(entropy_coef=0.3, policy_loss="nll")
    logits = torch.tensor([[0.5, -1.0, 2.0]], dtype=torch.float64, requires_grad=True)
    b = batch([[0.0]], advantages=[0.0])
    value = goal.vocab_terms[0].fn(logits, None)
    p = torch.softmax(logits.detach(), -1)[0]
    assert value.item() == pytest.approx(float(-(p * p.log()).sum()))
    b.vocab = {"entropy": torch.stack([value[0] * 0, value[0]])}
    loss_of(goal, [b]).backward()
    expected = 0.3 * p * (p.log() + value.item())  # minus the gradient of H
    assert torch.allclose(logits.grad[0], expected)


def test_adaptive_entropy_bonus():
    goal = objective(entropy_coef=0.0, entropy_target=1.0, entropy_step=0.01)
    low, high = batch([[0.0]], entropy=[[0.5]]), batch([[0.0]], entropy=[[1.5]])
    weights = []
    for b in (low, low, high, low):
        goal.token_advantages(b, alone)
        b.vocab = {"entropy": torch.ones_like(b.mask)}
        weights.append(float(goal.token_loss(b).metrics["policy/entropy_coef"][0]))
    assert weights == pytest.approx([0.01, 0.02, 0.0, 0.02])
    other = objective(entropy_coef=0.0, entropy_target=1.0, entropy_step=0.01)
    other.load_state_dict(goal.state_dict())
    assert other.state_dict() == goal.state_dict() == {"entropy": {"coef": pytest.approx(0.02), "acts": True}}


def test_full_vocabulary_kl():
    p, q = torch.tensor([0.7, 0.2, 0.1]).double(), torch.tensor([0.5, 0.25, 0.25]).double()
    assert full_reverse(p.log()[None] + 3, q.log()[None]).item() == pytest.approx(float((p * (p / q).log()).sum()))
    assert full_forward(p.log()[None], q.log()[None] - 2).item() == pytest.approx(float((q * (q / p).log()).sum()))
