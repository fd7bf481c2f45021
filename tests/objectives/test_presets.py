"""Every preset loads, builds, and gives a finite loss and gradient on a small batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rl.config import load
from rl.config.errors import ConfigError
from rl.config.loading import SHIPPED
from rl.objectives import build
from rl.objectives.kl import ENTROPY
from tests.objectives.batches import batch, bundle, loss_of, objective

PRESETS = sorted(p.stem for p in (SHIPPED / "configs" / "algorithm").glob("*.yaml"))
NAMED = ["grpo", "dr_grpo", "dapo", "gspo", "gmpo", "cispo", "rloo", "reinforce_pp", "ppo", "rft", "opd", "sage"]


def preset(name: str, folder: Path):
    recipe = folder / "recipe.yaml"
    recipe.write_text(f"defaults: [algorithm/{name}]\n")
    return load(recipe).config


def test_all_named_presets_exist():
    assert set(NAMED) <= set(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_preset_states_what_it_is_and_its_paper(name):
    first, second = (SHIPPED / "configs" / "algorithm" / f"{name}.yaml").read_text().splitlines()[:2]
    assert first.startswith("# ") and first.endswith(".") and "arXiv" in first + second


@pytest.mark.parametrize("name", PRESETS)
def test_preset_trains(name, tmp_path):
    goal = build(preset(name, tmp_path).algorithm, max_response_tokens=8)
    verdicts = goal.weights([bundle("a", [1.0, 0.0]), bundle("b", [1.0, 1.0])])
    assert len(verdicts) == 4 and all(v.drop or abs(v.advantage) < 10 for v in verdicts.values())
    b = batch(
        [[-0.5, -2.0], [-1.0]],
        advantages=[1.0, -1.0],
        ref_logprobs=[[-0.6, -1.5], [-1.2]],
        teacher_logprobs=[[-0.4, -1.0], [-3.0]],
        entropy=[[0.5, 2.0], [1.5]],
        values=[[0.1, 0.2], [0.3]],
    )
    b.advantages = goal.token_advantages(b, lambda x: x)
    for term in goal.vocab_terms:
        b.vocab = {term.name: torch.ones_like(b.mask)}
    loss = loss_of(goal, [b])
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(b.logprobs.grad).all()
    assert b.logprobs.grad[b.mask > 0].abs().sum() > 0


def test_unknown_part_names_the_nearest():
    with pytest.raises(ConfigError, match=r"algorithm.policy_loss.*ppo_clip"):
        objective(policy_loss="ppo_clp")
    with pytest.raises(ConfigError, match=r"policy_loss_options.clip_hi.*clip_high"):
        objective(policy_loss_options={"clip_hi": 0.3})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy_loss_options": {"dual_clip": 0.5}}, "dual_clip must be above 1"),  # LOSS-20
        ({"guide": "branch"}, "kl_coef"),
        ({"kl_in": "reward", "kl_coef": 0.1}, "kl_estimator=k1"),
        ({"top_entropy_share": 0.0}, "top_entropy_share"),
        ({"overlong_buffer": 17}, "overlong_buffer"),
        ({"critic_warmup_steps": 2}, "gae"),
        ({"correction": "mis_token", "correction_options": {"low": 3.0}}, "low < high"),
        ({"advantage": "pass_at_k", "advantage_options": {"k": 0}}, "k must be at least 1"),
        ({"guide": "token", "kl_coef": 0.1, "guide_options": {"norm": "max"}}, "minmax"),
    ],
)
def test_impossible_settings_are_refused_before_a_run(settings, message):
    with pytest.raises(ConfigError, match=message):
        objective(**settings)


def test_signals_are_what_the_parts_need():
    assert objective().signals == frozenset()
    assert objective(kl_coef=0.1).signals == {"ref_logprobs"}
    assert objective(token_advantage="gae", advantage="raw").signals == {"values"}
    assert objective(top_entropy_share=0.2).signals == {"entropy"}
    full = objective(kl_coef=0.1, kl_estimator="full_forward")
    assert full.signals == frozenset() and [t.needs_ref for t in full.vocab_terms] == [True]
    assert objective(entropy_coef=0.01).vocab_terms == (ENTROPY,)


def test_users_own_parts_come_from_a_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from rl.objectives.base import TokenBatch, TokenLoss\n"
        "def squared(groups, *, power=2):\n"
        "    return [(r - r.mean()) ** power for r in groups]\n"
        "def plain(batch: TokenBatch) -> TokenLoss:\n"
        "    return TokenLoss(-batch.advantages * batch.logprobs)\n"
        "def wrong(batch):\n"
        "    return batch.missing\n"
    )
    goal = objective(advantage=f"{file}:squared", policy_loss=f"{file}:plain", advantage_options={"power": 4})
    verdicts = goal.weights([bundle("a", [1.0, 0.0, 0.0, 0.0])])
    assert verdicts["a#0", "solution", 0].advantage == pytest.approx(0.75**4)
    b = batch([[-0.5, -2.0]], advantages=[3.0])
    assert loss_of(goal, [b]).item() == pytest.approx(3 * 2.5 / 2)
    assert not goal.may_skip(verdicts["a#0", "solution", 1])  # an unknown loss may act without an advantage
    with pytest.raises(ConfigError, match=r"policy_loss.*wrong.*AttributeError.*missing"):
        objective(policy_loss=f"{file}:wrong")
