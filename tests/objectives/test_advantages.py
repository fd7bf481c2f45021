"""Advantage estimators against hand-computed numbers, and what counts as a group's baseline."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest

from rl.objectives import advantages as adv
from rl.types import Finish
from tests.objectives.batches import advantages_of, bundle, objective, trajectory

EIGHT = np.array([1, 1, 1, 0, 0, 0, 0, 0], dtype=float)


def one(fn, rewards, **options):
    return fn([np.asarray(rewards, dtype=float)], **options)[0]


@pytest.mark.parametrize(
    ("fn", "right", "wrong"),
    [  # LOSS-37: published values for three right of eight
        (adv.leave_one_out, 0.71429, -0.42857),
        (adv.group_mean, 0.625, -0.375),
        (adv.group_norm, 1.20761, -0.72457),
    ],
)
def test_reference_values(fn, right, wrong):
    assert one(fn, EIGHT) == pytest.approx([right] * 3 + [wrong] * 5, abs=1e-5)


def test_group_norm_options():
    assert one(adv.group_norm, [1, 0], ddof=0, eps=0.0) == pytest.approx([1, -1])
    assert one(adv.group_norm, [1, 0], ddof=1, eps=0.0) == pytest.approx([0.5**0.5, -(0.5**0.5)])
    assert one(adv.group_norm, [1, 0], ddof=0, eps=0.5) == pytest.approx([0.5, -0.5])


@pytest.mark.parametrize("fn", [adv.group_norm, adv.group_mean, adv.leave_one_out, adv.batch_std, adv.pass_at_k])
@pytest.mark.parametrize("rewards", [[1, 1, 1, 1], [0, 0, 0, 0], [0.1] * 4, [0.1 + 0.2] * 7, [1]])
def test_equal_rewards_and_groups_of_one_give_exactly_zero(fn, rewards):  # LOSS-04
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert one(fn, rewards).tolist() == [0.0] * len(rewards)


def test_groups_do_not_mix():  # LOSS-05
    groups = [np.array([1.0, 0.0]), np.array([1.0, 1.0])]
    first, second = adv.group_norm(groups)
    assert second.tolist() == [0, 0] and first == pytest.approx([0.7071, -0.7071], abs=1e-4)
    moved = adv.group_norm([groups[0] + 5, groups[1]])
    assert moved[0] == pytest.approx(first) and moved[1].tolist() == [0, 0]


def test_batch_std_divides_by_the_spread_of_the_batch():
    groups = [np.array([1.0, 0.0]), np.array([1.0, 1.0])]
    assert adv.batch_std(groups, eps=0.0)[0] == pytest.approx([1.0, -1.0])  # std of 1 0 1 1 is 0.5


def test_pass_at_k_is_the_policy_gradient_of_pass_at_k_over_subsets():
    """Each sample's unnormalised advantage is the mean, over k-subsets that hold it, of (pass - mean pass)."""
    for right in range(1, 6):
        rewards = np.array([1.0] * right + [0.0] * (6 - right))
        subsets = list(itertools.combinations(range(6), 3))
        passes = {s: float(any(rewards[i] for i in s)) for s in subsets}
        mean = np.mean(list(passes.values()))
        std = np.std(list(passes.values()))
        expected = [(np.mean([passes[s] for s in subsets if i in s]) - mean) / std if std else 0.0 for i in range(6)]
        assert one(adv.pass_at_k, rewards, k=3) == pytest.approx(expected)
    assert one(adv.pass_at_k, [1.0, 0.0], k=3).tolist() == [0, 0]


def test_accepted():
    assert one(adv.accepted, [0.2, 0.5, 0.9, 0.9]).tolist() == [0, 1, 1, 1]
    assert one(adv.accepted, [0.2, 0.5, 0.9, 0.9], best=1).tolist() == [0, 0, 1, 0]
    goal = objective(advantage="accepted", policy_loss="nll", zero_advantage="drop")
    assert advantages_of(goal, [bundle("a", [1.0, 0.0])]) == {("a", 0): 1.0, ("a", 1): "zero_advantage"}


def test_gdpo_keeps_rewards_apart():
    """Two rewards whose sums are equal differ after each is normalised: the collapse that GDPO mends."""
    groups = [{"a": np.array([0.0, 1.0, 1.0]), "b": np.array([2.0, 1.0, 1.0])}]
    assert np.ptp(groups[0]["a"] + groups[0]["b"]) == 0
    by_hand = 0.5 * adv.group_norm([groups[0]["a"]])[0] + adv.group_norm([groups[0]["b"]])[0]
    plain = adv.gdpo(groups, weights={"a": 0.5}, batch_norm=False)[0]
    assert plain == pytest.approx(by_hand) and np.ptp(plain) > 0.5
    normed = adv.gdpo(groups, weights={"a": 0.5})[0]
    assert normed.mean() == pytest.approx(0, abs=1e-12) and normed.std() == pytest.approx(1, abs=1e-4)


def test_gdpo_leaves_out_only_the_reward_that_did_not_score():  # LOSS-02
    def change(t):
        t.rewards = {"a": None if t.sample_index == 2 else float(t.sample_index), "b": float(t.sample_index == 2)}

    goal = objective(advantage="gdpo", advantage_options={"batch_norm": False, "ddof": 0, "eps": 0.0})
    got = advantages_of(goal, [bundle("t", [0.0, 1.0, 1.0], change)])
    b = [-(0.5**0.5), -(0.5**0.5), 2 * 0.5**0.5]
    assert [got["t", i] for i in range(3)] == pytest.approx([-1 + b[0], 1 + b[1], b[2]])


def test_one_scorable_row_has_no_baseline():  # LOSS-02
    got = advantages_of(objective(), [bundle("t", [None, None, None, 1.0])])
    assert got == {("t", 0): "not_scored", ("t", 1): "not_scored", ("t", 2): "not_scored", ("t", 3): 0.0}


def test_rows_out_of_the_baseline_leave_it_untouched():
    rewards = [1.0, 0.0, 1.0, 0.5, 0.0, 9.0]

    def change(t):
        t.finish = {3: Finish.TIMEOUT, 4: Finish.ENV_ERROR, 5: Finish.ABORTED}.get(t.sample_index, Finish.LENGTH)

    got = advantages_of(objective(), [bundle("t", rewards, change)])
    alone = advantages_of(objective(), [bundle("t", rewards[:3])])
    assert {k: got[k] for k in alone} == alone
    assert [got["t", i] for i in (3, 4, 5)] == ["timeout", "env_error", "aborted"]


def test_order_of_delivery_does_not_matter():  # LOSS-07
    a, b = bundle("a", [1.0, 0.0]), bundle("b", [1.0, 1.0])
    straight = advantages_of(objective(), [a, b])
    a.groups["solution"].trajectories.reverse()
    assert advantages_of(objective(), [b, a]) == straight
    assert straight["b", 0] == straight["b", 1] == 0 and straight["a", 0] == -straight["a", 1] > 0


def test_groups_are_those_of_a_task():  # LOSS-06
    got = advantages_of(objective(), [bundle("a", [1.0, 0, 0, 0]), bundle("b", [1.0, 1.0, 1.0, 0])])
    for task in "ab":
        assert sum(got[task, i] for i in range(4)) == pytest.approx(0, abs=1e-12)
        assert any(got[task, i] for i in range(4))


def test_zero_variance_groups():
    bundles = [bundle("a", [1.0, 1.0]), bundle("b", [0.0, 0.5, 1.0])]
    kept = advantages_of(objective(), bundles)
    assert kept["a", 0] == 0.0 and kept["b", 1] == 0.0
    dropped = advantages_of(objective(zero_advantage="drop_groups"), bundles)
    assert dropped["a", 0] == dropped["a", 1] == "zero_variance" and dropped["b", 1] == 0.0


def test_truncated_rows_can_be_left_out():
    def change(t):
        t.finish = Finish.LENGTH if t.sample_index else Finish.STOP

    got = advantages_of(objective(mask_truncated=True), [bundle("t", [1.0, 0.0, 0.0], change)])
    assert got == {("t", 0): 0.0, ("t", 1): "truncated", ("t", 2): "truncated"}


def test_overlong_penalty_counts_trained_tokens():  # LOSS-33
    """4 + 5 sampled tokens around 3 of a tool, limit 10: no penalty; the span would be 12."""
    goal = objective(10, advantage="raw", overlong_buffer=1)
    t = trajectory(1.0, 0, tokens=12)
    t.segments[0].loss_mask[5:8] = False
    t.rewards["a"] = 1.0
    made = bundle("t", [1.0])
    made.groups["solution"].trajectories = [t]
    assert t.response_tokens == 9 and advantages_of(goal, [made]) == {("t", 0): 1.0}


@pytest.mark.parametrize(("tokens", "penalty"), [(1, 0.0), (12, 0.0), (14, -0.5), (16, -1.0), (99, -1.0)])
def test_soft_overlong_penalty(tokens, penalty):
    from rl.objectives.shaping import overlong_penalty

    assert overlong_penalty(tokens, limit=16, buffer=4) == penalty
    assert overlong_penalty(tokens, limit=16, buffer=4, factor=0.5) == penalty / 2
