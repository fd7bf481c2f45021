"""The packed forward is the separate forwards, for every supported family."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from rl.config import load
from rl.training.logprobs import chunked_logprobs
from rl.training.model import TESTED, PolicyModule, load_model
from rl.training.packed import pack_tokens
from rl.training.weights import mix_into
from tests.tiny import tiny_model


@pytest.mark.parametrize("family", TESTED)
@pytest.mark.parametrize("tied", [False, True])
# LOSS-27, LOSS-35, LOSS-36
def test_packed_logprobs_and_entropy_equal_plain_forwards(family: str, tied: bool, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = tiny_model(tmp_path / "m", family, tied=tied)
    config = load(None, [f"model.path={folder}", "trainer.dtype=float32", "trainer.logits_chunk=7"]).config
    policy = PolicyModule(load_model(config.model), config)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    g = np.random.default_rng(1)
    rows = [g.integers(3, 250, n) for n in (5, 17, 2, 9)]
    temperatures = [1.0, 0.7, 1.3, 1.0]
    packed = pack_tokens(rows, [np.arange(len(r)) > 0 for r in rows], temperatures, torch.device("cpu"))
    logprobs, entropy, _ = policy(packed)
    wanted, wanted_entropy = [], []
    for row, temperature in zip(rows, temperatures, strict=True):
        ids = torch.from_numpy(row)[None]
        full = torch.log_softmax(plain(ids, use_cache=False).logits[0, :-1].float() / temperature, -1)
        wanted.append(full.gather(-1, ids[0, 1:, None]).squeeze(-1))
        wanted_entropy.append(-(full.exp() * full).sum(-1))
    torch.testing.assert_close(logprobs, torch.cat(wanted), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(entropy, torch.cat(wanted_entropy), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("family", "sizes"), [(f, {}) for f in TESTED] + [("mistral", {"sliding_window": 6})])
def test_shared_prompts_change_neither_values_nor_gradients(family: str, sizes: dict, tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "m", family, **sizes)
    config = load(None, [f"model.path={folder}", "trainer.dtype=float32"]).config
    g = np.random.default_rng(2)
    rows, masks = [], []
    for prompt, answers in ((9, (4, 5, 11, 1)), (14, (3,)), (12, (6, 7))):
        head = g.integers(3, 250, prompt)
        for n in answers:
            rows.append(np.concatenate([head, g.integers(3, 250, n)]))
            masks.append(np.arange(prompt + n) >= prompt)
    masks[2][11] = False  # an observation inside a response
    device = torch.device("cpu")
    weights = torch.linspace(-1, 1, sum(int(m.sum()) for m in masks))

    def grads(packs: list[list[int]]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        policy = PolicyModule(load_model(config.model), config)
        values = []
        for members in packs:
            packed = pack_tokens([rows[i] for i in members], [masks[i] for i in members], [1.0] * len(members), device)
            if len(members) > 1:
                assert len(packed.inputs(planned=True).input_ids) == len(packed.input_ids) - 3 * 9 - 12
            values.append(policy(packed)[0])
        joined = torch.cat(values)
        (joined * weights).sum().backward()
        return joined.detach(), {n: p.grad for n, p in policy.named_parameters() if p.grad is not None}

    shared, separate = grads([list(range(len(rows)))]), grads([[i] for i in range(len(rows))])
    torch.testing.assert_close(shared[0], separate[0], atol=1e-5, rtol=1e-5)
    assert shared[1].keys() == separate[1].keys()
    for name in shared[1]:
        torch.testing.assert_close(shared[1][name], separate[1][name], atol=2e-5, rtol=1e-4, msg=name)


def test_a_share_of_the_policy_goes_into_the_reference() -> None:
    target, source = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    before = target.weight.detach().clone()
    mix_into(target, source, 0.25)
    torch.testing.assert_close(target.weight.detach(), 0.75 * before + 0.25 * source.weight.detach())
    mix_into(target, source, 1.0)
    assert all(torch.equal(a, b) for a, b in zip(target.parameters(), source.parameters(), strict=True))


def test_chunks_give_the_same_values_and_gradients() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(23, 8, requires_grad=True), torch.randn(50, 8, requires_grad=True)
    targets, temperature = torch.randint(0, 50, (23,)), torch.rand(23) + 0.5
    grads = []
    for chunk in (23, 4):
        values, _, _ = chunked_logprobs(hidden, lambda h: h @ weight.T, targets, temperature, chunk=chunk)
        grads.append((values.detach(), *torch.autograd.grad(values.square().sum(), (hidden, weight))))
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_no_more_than_one_chunk_of_logits_exists_at_a_time() -> None:
    seen = []

    def head(h: torch.Tensor) -> torch.Tensor:
        seen.append(h.shape[0])
        return h @ torch.zeros(8, 50)

    chunked_logprobs(torch.randn(40, 8), head, torch.zeros(40, dtype=torch.long), torch.ones(40), chunk=16)
    assert seen == [16, 16, 8]
