"""Exact gradients and optima on bandits and a two-step tree: what each estimator really optimises."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rl.objectives.advantages import ADVANTAGES, group_norm
from rl.objectives.kl import KL
from rl.objectives.token_advantages import broadcast
from tests.objectives.bandit import REFERENCE, REWARD, Q, ascend, expected_gradient, guided, optimum
from tests.objectives.batches import DOUBLE, batch, objective, responses

THREE = {"reference": [0.5, 0.3, 0.2], "policy": [0.2, 0.3, 0.5], "q": [0.8, 1.0, 1.4]}
ONES = [1.0] * 5


def test_reinforce_and_ppo_give_the_exact_policy_gradient():
    """d/dlogits of E[r] is pi (r - E[r])."""
    policy, reward = np.array([0.2, 0.5, 0.3]), np.array([1.0, -2.0, 0.5])
    for name in ("reinforce", "ppo_clip", "cispo", "nll"):
        slope = expected_gradient(objective(policy_loss=name), torch.tensor(np.log(policy)), [1 / 3] * 3, reward)
        assert slope.numpy() == pytest.approx(-policy * (reward - policy @ reward), abs=1e-12), name


def test_group_mean_is_an_unbiased_baseline_but_for_a_factor():
    """Over all groups of two, E[A grad log pi] is (n - 1) / n of the exact gradient; leave-one-out is exact."""
    policy, reward = torch.tensor([0.3, 0.7], dtype=DOUBLE), np.array([1.0, 0.0])
    exact = (policy * (torch.tensor(reward) - 0.3)).numpy()
    for estimator, factor in (("group_mean", 0.5), ("leave_one_out", 1.0)):
        total = np.zeros(2)
        for i in (0, 1):
            for j in (0, 1):
                a = ADVANTAGES[estimator]([reward[[i, j]]])[0]
                score = [np.eye(2)[k] - policy.numpy() for k in (i, j)]
                total += float(policy[i] * policy[j]) * (a[0] * score[0] + a[1] * score[1]) / 2
        assert total == pytest.approx(factor * exact, abs=1e-12)


def kl_gradient(estimator, tmp_path, scale=1.0, **settings):
    goal = guided(tmp_path, [scale * x for x in THREE["q"]], estimator, 1.0, **settings)
    logits = torch.tensor(np.log(THREE["policy"]))
    return expected_gradient(goal, logits, THREE["reference"], [0.0] * 3, in_reward=bool(settings)).numpy()


def test_gradient_identities(tmp_path):
    exact = [-0.168885, -0.045384, 0.214269]
    assert kl_gradient("k2", tmp_path) == pytest.approx(exact, abs=1e-6)
    assert kl_gradient("k1", tmp_path) == pytest.approx([0, 0, 0], abs=1e-12)
    assert kl_gradient("k3", tmp_path) == pytest.approx([-0.204, -0.006, 0.21], abs=1e-12)
    assert kl_gradient("k1", tmp_path, kl_in="reward") == pytest.approx(exact, abs=1e-6)
    assert kl_gradient("k2", tmp_path, scale=1.7) == pytest.approx(exact, abs=1e-6)
    assert kl_gradient("k3", tmp_path, scale=1.7) == pytest.approx(
        1.7 * np.array(THREE["q"]) @ THREE["reference"] * np.array(THREE["policy"])
        - 1.7 * np.array(THREE["q"]) * THREE["reference"]
    )


def test_expected_values():
    policy, anchor = np.array(THREE["policy"]), np.array(THREE["q"]) * THREE["reference"]
    values = {name: fn(torch.tensor(np.log(policy)), torch.tensor(np.log(anchor))).numpy() for name, fn in KL.items()}
    assert policy @ values["k1"] == pytest.approx(0.15127981, abs=1e-8)
    assert policy @ values["k3"] == pytest.approx(0.13127981, abs=1e-8)
    assert anchor.sum() - 1 + policy @ values["k1"] == pytest.approx(policy @ values["k3"])


def test_state_only_guide_scales_the_k3_force(tmp_path):
    goal = guided(tmp_path, [1.4] * 3, "k3", 1.0)
    logits = torch.tensor(np.log(THREE["policy"]))
    slope = expected_gradient(goal, logits, THREE["reference"], [0.0] * 3)
    assert slope.tolist() == pytest.approx([-0.42, 0, 0.42], abs=1e-12)


@pytest.mark.parametrize(
    ("estimator", "q", "beta", "expected"),
    [
        ("k2", Q, 0.5, [0.111878, 0.661338, 0.055939, 0.132268, 0.038578]),
        ("k1", Q, 0.5, [0.111878, 0.661338, 0.055939, 0.132268, 0.038578]),
        ("k2", ONES, 0.5, [0.154504, 0.684982, 0.046351, 0.091331, 0.022833]),
        ("k1", [1.3] * 5, 0.5, [0.154504, 0.684982, 0.046351, 0.091331, 0.022833]),
        ("k3", Q, 0.5, [0.126439, 0.643980, 0.063220, 0.128796, 0.037565]),
        ("k3", ONES, 0.5, [0.202046, 0.632005, 0.060614, 0.084267, 0.021067]),
        ("k3", [1.4] * 5, 0.5, [0.255997, 0.571889, 0.076799, 0.076252, 0.019063]),
        ("k3", ONES, 0.7, [0.255997, 0.571889, 0.076799, 0.076252, 0.019063]),
    ],
)
def test_tabular_optimum(estimator, q, beta, expected, tmp_path):
    in_reward = estimator == "k1"
    goal = guided(tmp_path, q, estimator, beta, **({"kl_in": "reward"} if in_reward else {}))
    found = optimum(goal, REFERENCE, REWARD, in_reward)
    assert found == pytest.approx(expected, abs=1e-6)
    anchor = np.array(q) * REFERENCE
    if estimator == "k3":  # pi = beta q ref / (lambda - r), lambda = beta Z + E[r]
        multiplier = beta * anchor.sum() + found @ REWARD
        assert found == pytest.approx(beta * anchor / (multiplier - np.array(REWARD)), abs=1e-12)
    else:
        closed = anchor * np.exp(np.array(REWARD) / beta)
        assert found == pytest.approx(closed / closed.sum(), abs=1e-12)


@pytest.mark.parametrize(("q", "value"), [(Q, 0.493187), (ONES, 0.587195)])
def test_optimal_values(q, value, tmp_path):
    """J* = E[r] - beta KL(pi || q ref) with the un-normalised anchor."""
    found = optimum(guided(tmp_path, q, "k2", 0.5), REFERENCE, REWARD)
    divergence = (found * np.log(found / (np.array(q) * REFERENCE))).sum()
    assert found @ REWARD - 0.5 * divergence == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize(("q", "value"), [(Q, 1.186341), (ONES, 1.237340)])
def test_multiplier_of_the_k3_fixed_point(q, value, tmp_path):
    found = optimum(guided(tmp_path, q, "k3", 0.5), REFERENCE, REWARD)
    assert 0.5 * float(np.array(q) @ REFERENCE) + found @ REWARD == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_gradient_descent_reaches_the_optimum(estimator, tmp_path):
    goal = guided(tmp_path, Q, estimator, 0.5)
    assert ascend(goal, REFERENCE, REWARD, 8.0, 1200) == pytest.approx(optimum(goal, REFERENCE, REWARD), abs=1e-12)


def test_sampled_rollouts_agree_with_the_expectation(tmp_path):
    """A batch of 40,000 samples: the gradient within three standard errors."""
    generator = np.random.default_rng(0)
    policy, reference, q = np.array([0.2, 0.3, 0.5]), np.array([0.5, 0.3, 0.2]), np.array([0.8, 1.0, 1.4])
    arms = generator.choice(3, size=40_000, p=policy)
    logits = torch.tensor(np.log(policy), requires_grad=True)
    logprobs = torch.log_softmax(logits, 0)[torch.tensor(arms)]
    losses = KL["k3"](logprobs, torch.tensor(np.log(q * reference))[torch.tensor(arms)])
    (slope,) = torch.autograd.grad(losses.mean(), logits)
    force = (1 - q * reference / policy)[:, None] * (np.eye(3) - policy)
    mean = policy @ force
    error = np.sqrt((policy @ force**2 - mean**2) / len(arms))
    assert mean == pytest.approx([-0.204, -0.006, 0.21], abs=1e-12)
    assert (np.abs(slope.numpy() - mean) < 3 * error + 1e-12).all()


def test_surprisal_guide_is_an_entropy_bonus():
    settings = {"policy_loss": "reinforce", "kl_coef": 0.5, "guide": "surprisal", "guide_options": {"eta": 0.25}}
    found = optimum(objective(**settings, kl_estimator="k2"), REFERENCE, REWARD)
    assert found == pytest.approx([0.180296, 0.593441, 0.068815, 0.118394, 0.039055], abs=1e-6)


TREE_ROWS = [(0, a) for a in range(4)] + [(1, a) for a in range(4)]
LEAF = [[0.25] * 4, [0.97, 0.01, 0.01, 0.01]]


def tree_gradient(kind: str, root_logits: list[float], beta: float = 0.05) -> float:
    """Expected gradient in the root's first logit, r = 0, with the branch guide's q held fixed.

    Two tokens a sequence: the root's arm (its own q is 1), then a leaf; after A the entropy is ln 4.
    """
    logits = torch.tensor(root_logits, dtype=DOUBLE, requires_grad=True)
    root = torch.log_softmax(logits, 0)
    entropy = [math.log(4), -sum(p * math.log(p) for p in LEAF[1])]
    assert entropy == pytest.approx([1.386294, 0.167701], abs=1e-6)
    rows = [[float(root[arm].detach()), math.log(LEAF[arm][leaf])] for arm, leaf in TREE_ROWS]
    b = batch(
        rows,
        ref_logprobs=[[math.log(0.5), row[1]] for row in rows],
        entropy=[[0.0, entropy[arm]] for arm, _ in TREE_ROWS],
        advantages=[0.0] * 8,
    )
    pieces = [
        torch.stack([root.new_zeros(()), root[arm], root.new_tensor(rows[i][1])])
        for i, (arm, _) in enumerate(TREE_ROWS)
    ]
    b.logprobs = torch.cat(pieces)
    settings = {"policy_loss": "reinforce", "kl_coef": beta, "guide": "branch"}
    if kind == "k1_seq_reward":
        goal = objective(**settings, kl_estimator="k1", kl_in="reward")
        b.advantages = goal.token_advantages(b, lambda x: x)
        # The baseline of the group: its mean over the eight rows is a constant and has no expected effect.
    else:
        goal = objective(**settings, kl_estimator=kind)
    per_sequence = (goal.token_loss(b).loss * b.mask).reshape(8, 3).sum(1)
    mass = torch.tensor([math.exp(sum(row)) for row in rows], dtype=DOUBLE)
    (slope,) = torch.autograd.grad((mass * per_sequence).sum(), logits)
    return float(slope[0])


def solve_tree(kind: str, beta: float) -> float:
    low, high = -5.0, 5.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if tree_gradient(kind, [middle, 0.0], beta) > 0 else (middle, high)
    return 1 / (1 + math.exp(-low))


@pytest.mark.parametrize("beta", [0.05, 0.7])
def test_branch_guide_on_a_tree_tells_implementations_apart(beta):
    q = 1 + 0.3 * (math.log(4) - 1.2)
    assert q == pytest.approx(1.055888, abs=1e-6)
    assert solve_tree("k1_seq_reward", beta) == pytest.approx(0.513592, abs=1e-6)
    assert solve_tree("k3", beta) == pytest.approx(0.5, abs=1e-9)
    assert solve_tree("k2", beta) == pytest.approx(0.5, abs=1e-9)


def shaped(rewards, log_ratio, log_q, beta=0.05, extra=0.0):
    """Shaping before normalisation, as a pure function."""
    r = np.array(rewards) - beta * (np.array(log_ratio) - np.array(log_q)) + extra
    return r, group_norm([r])[0]


def test_the_normaliser_cancels_per_prompt_and_per_sequence():
    arguments = ([1, 0, 0, 1], [-1, 0.5, 2, 0.3], [0.4, 0.1, 0, 0.7])
    r, a = shaped(*arguments)
    assert r == pytest.approx([1.07, -0.02, -0.1, 1.02])
    assert a == pytest.approx([0.903566, -0.801866, -0.927035, 0.825335], abs=1e-6)
    assert np.abs(shaped(*arguments, extra=0.05 * 3.3)[1] - a).max() < 1e-14
    lengths = np.array([10, 20, 40, 80])
    tilted = shaped(arguments[0], arguments[1], np.array(arguments[2]) + 0.1 * lengths)[1]
    assert tilted == pytest.approx([0.635614, -0.866747, -0.837855, 1.068988], abs=1e-6)


def test_what_a_group_shares_cancels_in_k1_seq_reward():
    b = batch([[-1.0], [-1.0]], advantages=[0.5, -0.5])
    kl = torch.tensor([0.0, 0.3, 0.0, 0.1], dtype=DOUBLE)
    shifted = kl + torch.tensor([0.0, 7.0, 0.0, 7.0], dtype=DOUBLE)
    same = responses(broadcast(b, lambda x: x, shifted), b)
    assert same == [pytest.approx(row) for row in responses(broadcast(b, lambda x: x, kl), b)]


def test_sage_raises_pass_at_k_on_correct_arms_with_q_above_one(tmp_path):
    """Exact: several right arms; those the guide raises are found more often than under plain KL-GRPO."""
    sage = optimum(guided(tmp_path, Q, "k3", 0.5), REFERENCE, REWARD)
    plain = optimum(objective(policy_loss="reinforce", kl_coef=0.5), REFERENCE, REWARD)
    for arm in (3, 4):  # right, and q > 1
        for k in (1, 4, 16):
            assert 1 - (1 - sage[arm]) ** k > 1 - (1 - plain[arm]) ** k + 1e-3
    assert sage[1] / sage[4] < plain[1] / plain[4]


@pytest.mark.parametrize(("power", "mass"), [(0, 2.718e-4), (4, 1.043e-3), (8, 3.996e-3)])
def test_support_of_a_rare_answer(power, mass, tmp_path):
    """A right answer of reference mass 1e-4, beta 1: only q = 1.4^8 lifts it over 1/256."""
    goal = guided(tmp_path, [1.4**power, 1.0], "k2", 1.0)
    assert optimum(goal, [1e-4, 1 - 1e-4], [1.0, 0.0])[0] == pytest.approx(mass, rel=1e-3)
