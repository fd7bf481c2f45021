"""SAGE: guides, schedules, the golden loss and its gradient, layout independence."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math

import pytest
import torch

from rl.config.errors import ConfigError
from rl.objectives import guides
from rl.objectives.guides import log_q
from rl.objectives.schedules import warm_restarts
from tests.objectives.batches import batch, gradient, loss_of, objective, responses

SAGE = {"kl_coef": 0.05, "guide": "branch"}
ROWS = {
    "logprobs": [[-0.5, -2.0, -1.0], [-0.1, -3.0]],
    "ref_logprobs": [[-0.6, -1.5, -1.0], [-0.1, -2.0]],
    "entropy": [[0.5, 2.0, 1.5], [0.1, 3.0]],
    "advantages": [1.0, -1.0],
}
# k3 without a guide, by hand; the policy terms of the two sequences cancel.
PLAIN_SEQUENCE_MEAN = 0.05 / 2 * ((math.exp(-0.1) - 0.9 + math.exp(0.5) - 1.5) / 3 + (math.e - 2) / 2)
SURPRISALS = [0.01, 0.02, 0.1, 0.5, 1.0, 3.0]


def q_of(guide, b, **options):
    return [[math.exp(x) for x in row] for row in responses(log_q(lambda seen: guide(seen, **options), b), b)]


def flat(rows):
    return list(itertools.chain.from_iterable(rows))


def test_golden_q_and_kl():
    b = batch(**ROWS)
    assert flat(q_of(guides.branch, b)) == pytest.approx([1, 1.24, 1.09, 1, 1.4])
    with_kl, without = objective(**SAGE), objective()
    kl = (with_kl.token_loss(b).loss - without.token_loss(b).loss) / 0.05
    assert flat(responses(kl, b)) == pytest.approx([0.004837, 0.329303, 0.003822, 0, 1.469122], abs=1e-6)
    total, count = with_kl.token_loss(b).metrics["policy/ref_kl"]
    assert float(total / count) == pytest.approx(0.3614170082, abs=1e-10)


@pytest.mark.parametrize(
    ("guide", "aggregation", "loss"),
    [
        ("branch", "sequence_mean", 0.0211803850),
        ("branch", "token_mean", -0.1819291496),
        (None, "sequence_mean", PLAIN_SEQUENCE_MEAN),
        (None, "token_mean", -0.1912815948),
    ],
)
def test_golden_loss(guide, aggregation, loss):
    goal = objective(kl_coef=0.05, guide=guide, aggregation=aggregation)
    assert loss_of(goal, [batch(**ROWS)]).item() == pytest.approx(loss, abs=1e-10)


def test_golden_gradient_and_plain_kl_metric():
    got = gradient(objective(**SAGE, aggregation="sequence_mean"), batch(**ROWS))
    assert flat(got) == pytest.approx([-0.165874, -0.175370, -0.167417, 0.25, 0.214930], abs=1e-6)
    total, count = objective(kl_coef=0.05).token_loss(batch(**ROWS)).metrics["policy/ref_kl"]
    assert float(total / count) == pytest.approx(0.1743681034, abs=1e-10)


def test_branch_golden():
    entropies = [0, 0.5, 1.2, 1.5, 2, 2.5, 3]
    b = batch([[-1.0] * 7], entropy=[entropies])
    assert flat(q_of(guides.branch, b)) == pytest.approx([1, 1, 1, 1.09, 1.24, 1.39, 1.4])


@pytest.mark.parametrize(
    ("norm", "weights"),
    [
        ("minmax", [0, 0.003015, 0.035176, 0.195980, 0.396985, 1]),
        ("rank", [0, 0.2, 0.4, 0.6, 0.8, 1]),
        ("zscore", [0.327075, 0.329163, 0.346107, 0.436023, 0.553859, 0.891935]),
    ],
)
def test_token_golden(norm, weights):
    surprisals = torch.tensor(SURPRISALS, dtype=torch.float64)
    assert guides.NORMS[norm](surprisals).tolist() == pytest.approx(weights, abs=1e-6)


def test_token_guide_without_noise():
    b = batch([[-s for s in SURPRISALS]])
    got = flat(q_of(guides.token, b, sigma=(0.0, 0.0)))
    assert got == pytest.approx([1, 1.000905, 1.010553, 1.058794, 1.119095, 1.3], abs=1e-6)


@pytest.mark.parametrize("norm", sorted(guides.NORMS))
def test_norms_of_one_token_and_of_equal_ones(norm):
    for values in ([0.3], [0.3] * 4):
        got = guides.NORMS[norm](torch.tensor(values, dtype=torch.float64))
        assert torch.isfinite(got).all() and (got >= 0).all() and (got <= 1).all()


@pytest.mark.parametrize(
    ("start", "end", "values"),
    [
        (0.3, 0.1, [0.3, 0.201257, 0.100032, 0.27, 0.243]),
        (0.25, 0.1, [0.25, 0.175942, 0.100024, 0.225, 0.2025]),
        (0.1, 0.0, [0.1, 0.050628, 1.6e-5, 0.09, 0.081]),
    ],
)
def test_schedule_golden(start, end, values):
    got = [warm_restarts(s, start=start, end=end, steps=1000) for s in (0, 62, 124, 125, 250)]
    assert got == pytest.approx(values, abs=1e-6)


def test_schedule_never_falls_below_its_end_and_short_runs_anneal(caplog):
    late = [warm_restarts(s, start=0.15, end=0.1, steps=1000) for s in range(0, 3000, 7)]
    assert min(late) >= 0.1 - 1e-12
    with caplog.at_level(logging.WARNING):
        short = [warm_restarts(s, start=0.3, end=0.1, steps=9) for s in range(9)]
    assert "too short" in caplog.text and min(short) < 0.3 and all(v >= 0.1 for v in short)


def test_no_gradient_through_q_and_garbage_outside_the_mask_changes_nothing():
    """Check 1: surprisal depends on the log-prob, yet the loss's gradient is (1 - e^d) times beta alone."""
    goal = objective(kl_coef=1.0, guide="surprisal", guide_options={"eta": 0.5}, policy_loss="nll")
    b = batch([[-2.0]], ref_logprobs=[[-1.0]], advantages=[0.0])
    delta = -1.0 + 0.5 * 2.0 + 2.0
    assert flat(gradient(goal, b)) == pytest.approx([1 - math.exp(delta)])
    b = batch(**ROWS)
    clean = loss_of(objective(**SAGE), [b]).item()
    outside = b.mask == 0
    for name in ("entropy", "ref_logprobs", "rollout_logprobs", "old_logprobs"):
        getattr(b, name)[outside] = float("nan")
    b.logprobs = torch.where(outside, torch.full_like(b.mask, float("inf")), b.logprobs)
    assert loss_of(objective(**SAGE), [b]).item() == clean


def test_log_q_is_bounded_and_checked():
    b = batch([[-1.0, -1.0]])
    wild = log_q(lambda seen: torch.full_like(seen.mask, float("inf")), b)
    assert responses(wild, b) == [[pytest.approx(math.log(1e8))] * 2] and wild[0] == 0
    with pytest.raises(ValueError, match="NaN"):
        log_q(lambda seen: torch.full_like(seen.mask, float("nan")), b)
    with pytest.raises(ValueError, match="shape"):
        log_q(lambda seen: seen.mask[1:], b)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant_length", "group_mean"])
@pytest.mark.parametrize("correction", ["none", "tis_token"])
@pytest.mark.parametrize("clip", [0.2, 1e-3])
def test_q_of_one_is_grpo_with_kl_bit_for_bit(aggregation, correction, clip):
    shared = {
        "kl_coef": 0.05,
        "aggregation": aggregation,
        "correction": correction,
        "policy_loss_options": {"clip_low": clip, "clip_high": clip},
    }
    fields = ROWS | {"old_logprobs": [[-0.6, -1.7, -1.0], [-0.3, -2.9]], "rollout_logprobs": [[-0.5] * 3, [-4.0] * 2]}
    plain, one = objective(**shared), objective(**shared, guide="branch", guide_options={"ratio": 0.0})
    assert loss_of(plain, [batch(**fields)]).item() == loss_of(one, [batch(**fields)]).item()
    assert gradient(plain, batch(**fields)) == gradient(one, batch(**fields))


@pytest.mark.parametrize(("entropy", "floor"), [(2.0, 0.024889), (2.6, 0.063528), (9.0, 0.063528)])
def test_kl_metric_at_step_0_is_not_0(entropy, floor):
    b = batch([[-1.0]], ref_logprobs=[[-1.0]], entropy=[[entropy]])
    total, count = objective(**SAGE).token_loss(b).metrics["policy/ref_kl"]
    assert float(total / count) == pytest.approx(floor, abs=1e-6)


def test_guide_metrics():
    out = objective(**SAGE).token_loss(batch(**ROWS))
    logs = [0, math.log(1.24), math.log(1.09), 0, math.log(1.4)]
    assert [float(x) for x in out.metrics["guide/log_q_mean"]] == pytest.approx([sum(logs), 5])
    assert [float(x) for x in out.metrics["guide/above_one_share"]] == [3.0, 5.0]
    assert float(out.maxima["guide/log_q_max"]) == pytest.approx(math.log(1.4))
    assert float(out.minima["guide/log_q_min"]) == 0.0


@pytest.mark.parametrize("guide", [guides.token, guides.random])
def test_stochastic_guides_do_not_depend_on_layout(guide):
    rows = [[-0.5, -2.0, -1.0], [-0.1, -3.0], [-1.0] * 4]
    packed = batch(rows)
    whole = q_of(guide, packed, **({"share": (1.0, 1.0)} if guide is guides.random else {}))
    options = {"share": (1.0, 1.0)} if guide is guides.random else {}
    order = [2, 0, 1]
    moved = batch([rows[i] for i in order], sample_ids=torch.tensor([100 + i for i in order]))
    assert q_of(guide, moved, **options) == [whole[i] for i in order]
    for i, row in enumerate(rows):
        assert q_of(guide, batch([row], sample_ids=torch.tensor([100 + i])), **options) == [whole[i]]
    assert q_of(guide, dataclasses.replace(packed, step=2), **options) != whole
    assert q_of(guide, dataclasses.replace(packed, run_seed=8), **options) != whole
    assert all(0.6 - 1e-9 <= q <= 1.4 + 1e-9 for q in flat(whole))


def test_random_guide_touches_its_share():
    b = batch([[-1.0] * 4000])
    q = torch.tensor(flat(q_of(guides.random, b)))
    assert 0.07 < float((q != 1).double().mean()) < 0.13  # 0.1 +- 6 standard errors
    assert float(q[q != 1].std()) == pytest.approx(0.15, rel=0.2)


def test_teacher_mixture_anchor_is_the_mixture():
    reference, teacher = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.1, 0.1, 0.8])
    rows = [[math.log(p)] for p in reference]
    b = batch(rows, ref_logprobs=rows, teacher_logprobs=[[math.log(p)] for p in teacher])
    anchor = torch.tensor(flat(q_of(guides.teacher_mixture, b, share=0.3))) * reference.double()
    assert torch.allclose(anchor, 0.7 * reference.double() + 0.3 * teacher.double(), atol=1e-6)
    goal = objective(kl_coef=0.1, guide="teacher_mixture")
    assert goal.signals == {"ref_logprobs", "teacher_logprobs"}


def test_novelty_spreads_over_the_tokens_of_the_trajectory():
    b = batch([[-1.0, -1.0], [-1.0], [-1.0]])
    b.sample_ids = torch.tensor([1, 1, 2])
    b.features = {"novelty": torch.tensor([0.5, 0.5, 1.0])}
    got = responses(log_q(lambda seen: guides.novelty(seen, kappa=0.6), b), b)
    assert got == [pytest.approx([0.1, 0.1]), pytest.approx([0.1]), pytest.approx([0.6])]


def test_users_own_guide(tmp_path):
    file = tmp_path / "guide.py"
    file.write_text("def half(batch, *, size=0.5):\n    return (size * batch.mask).log()\n")
    goal = objective(kl_coef=0.1, guide=f"{file}:half", guide_options={"size": 0.25})
    b = batch([[-1.0]], ref_logprobs=[[-1.0]])
    total, _ = goal.token_loss(b).metrics["policy/ref_kl"]
    assert float(total) == pytest.approx(0.25 - 1 - math.log(0.25))
    with pytest.raises(ConfigError, match="kl_coef"):
        objective(guide=f"{file}:half")
