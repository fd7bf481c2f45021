"""Engine and trainer agree to 1e-4 before and after updates, and one stale tensor shows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl.config import load
from rl.config.schema import Config
from rl.rollout import create_engine
from rl.rollout.engine import DirtyEngineError
from rl.sync import create_sender
from rl.training.model import PolicyModule, load_model
from rl.training.packed import pack_tokens
from rl.training.weights import named_weights, perturb, probe_noise, restore
from rl.types import PolicyVersion, SamplingParams
from tests.tiny import tiny_model

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]
SAMPLING = SamplingParams(max_tokens=12, temperature=0.8, stop_token_ids=(2,))
LIMIT = Config().sync.probe_max
PROMPTS = [list(range(5, 5 + n)) for n in (4, 9, 17)]


def make_config(folder: Path, engine: str, *, tied: bool, lora: bool = False, transport: str = "file") -> Config:
    model = tiny_model(folder / "model", "llama", tied=tied)
    settings = [f"model.path={model}", f"rollout.engine={engine}", f"model.lora.enabled={lora}".lower()]
    settings += [f"sync.transport={transport}", f"sync.dir={folder}"]
    settings += ["rollout.dtype=float32", "trainer.dtype=float32", "device=cpu", "rollout.cache_gb=0.05"]
    return load(None, [*settings, "prompt.max_tokens=64", "rollout.max_response_tokens=64"]).config


class Pair:
    """A trainer's model and an engine."""

    def __init__(self, config: Config) -> None:
        self.model = load_model(config.model)
        self.policy = PolicyModule(self.model, config)
        self.engine = create_engine(config)
        self.sender = create_sender(config, run_id="test", rank=0)
        self.number = 0

    def tensors(self) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in named_weights(self.model, torch.float32)}

    async def publish(self, tensors: dict[str, torch.Tensor]) -> None:
        self.number += 1
        meta = [(name, tuple(t.shape), "float32") for name, t in tensors.items()]
        manifest = self.sender.begin(PolicyVersion(0, self.number), meta)
        await self.engine.begin_update(manifest)
        if manifest.transport == "file":
            self.sender.send(iter(tensors.items()))
            await self.engine.receive_weights(manifest)
        else:  # both ends meet
            sending = asyncio.to_thread(self.sender.send, iter(tensors.items()))
            await asyncio.gather(sending, self.engine.receive_weights(manifest))
        await self.engine.commit_update(manifest)
        self.sender.commit()

    def logprobs(self, row: list[int], start: int, temperature: float) -> np.ndarray:
        chosen = np.arange(len(row)) >= start
        packed = pack_tokens([np.array(row)], [chosen], [temperature], torch.device("cpu"))
        with torch.no_grad():
            return self.policy(packed)[0].numpy()

    async def check_samples(self) -> None:
        """Sampled log-probs are the trainer's to 1e-4."""
        for seed, prompt in enumerate(PROMPTS):
            out = await self.engine.generate(prompt, SAMPLING, seed=seed, request_id=f"{self.number}-{seed}")
            assert len(out.token_ids) == len(out.logprobs) > 0
            assert out.version_spans[0].version == PolicyVersion(0, self.number)
            expected = self.logprobs([*prompt, *out.token_ids.tolist()], len(prompt), SAMPLING.temperature)
            np.testing.assert_allclose(out.logprobs, expected, atol=1e-4)

    async def gap(self) -> float:
        """Largest difference of prompt log-probs at temperature 1: what the start-up probe looks at."""
        rows = [[7, *range(20, 60)], [9, *range(120, 150)]]
        scores = await self.engine.score(rows, 1.0)
        return max(float(np.abs(s[1:] - self.logprobs(r, 1, 1.0)).max()) for r, s in zip(rows, scores, strict=True))


def stale_cases(pair: Pair, clean: dict[str, torch.Tensor], noised: dict[str, torch.Tensor]) -> Iterator[Any]:
    """(name, tensors) with one tensor left as it was."""
    for name in (
        "model.embed_tokens.weight",
        "lm_head.weight",
        "model.norm.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.1.self_attn.k_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
    ):
        yield name, noised | {name: clean[name]}


@pytest.mark.parametrize("engine", ["hf", "vllm"])
@pytest.mark.parametrize("tied", [False, True])
def test_engine_and_trainer_agree_and_a_stale_tensor_shows(tmp_path: Path, engine: str, tied: bool) -> None:
    async def check() -> None:
        pair = Pair(make_config(tmp_path, engine, tied=tied))
        await pair.engine.start()
        try:
            with pytest.raises(DirtyEngineError):
                await pair.engine.generate(PROMPTS[0], SAMPLING, seed=0, request_id="early")
            clean = pair.tensors()
            await pair.publish(clean)
            await pair.check_samples()
            await check_sampling(pair)
            clones = perturb(pair.model, 1, probe_noise(2, exact=True))
            noised = pair.tensors()
            await pair.publish(noised)
            await pair.check_samples()
            assert await pair.gap() < LIMIT
            if engine == "vllm":
                for name, tensors in stale_cases(pair, clean, noised):
                    await pair.publish(tensors)
                    assert await pair.gap() > LIMIT, name
            restore(pair.model, clones)
            await pair.publish(pair.tensors())
            assert await pair.gap() < LIMIT
        finally:
            await pair.engine.stop()

    asyncio.run(check())


async def check_sampling(pair: Pair) -> None:
    """Seeds decide, whatever else runs; budgets and end tokens are kept."""

    async def draw(seed: int, name: str, **changes: Any) -> list[int]:
        sampling = SamplingParams(max_tokens=10, **changes)
        return (await pair.engine.generate(PROMPTS[1], sampling, seed=seed, request_id=name)).token_ids.tolist()

    alone = await draw(3, "alone")
    together = await asyncio.gather(*(draw(seed, f"together-{seed}") for seed in range(6)))
    assert together[3] == alone
    assert len({tuple(ids) for ids in together}) > 3
    assert len(alone) == 10
    ended = await draw(3, "ended", stop_token_ids=(alone[4],))
    assert ended == alone[: alone.index(alone[4]) + 1]
    assert await draw(3, "ignored", stop_token_ids=(alone[4],), ignore_eos=True) == alone


@pytest.mark.parametrize("engine", ["hf", "vllm"])
def test_a_broadcast_publish_reaches_the_engine(tmp_path: Path, engine: str) -> None:
    async def check() -> None:
        pair = Pair(make_config(tmp_path, engine, tied=True, transport="gloo"))
        await pair.engine.start()
        try:
            await pair.publish(pair.tensors())
            await pair.check_samples()
            perturb(pair.model, 1, probe_noise(2, exact=True))
            await pair.publish(pair.tensors())
            await pair.check_samples()
            assert await pair.gap() < LIMIT
        finally:
            await pair.engine.stop()

    asyncio.run(check())


def test_merged_adapters_reach_the_engine_and_a_stale_one_shows(tmp_path: Path) -> None:
    async def check() -> None:
        pair = Pair(make_config(tmp_path, "vllm", tied=True, lora=True))
        await pair.engine.start()
        try:
            clones = perturb(pair.model, 1, probe_noise(2, exact=True))
            await pair.publish(pair.tensors())
            await pair.check_samples()
            assert await pair.gap() < LIMIT
            name = next(n for n in clones if "lora_B" in n)
            parameter = dict(pair.model.named_parameters())[name]
            noised = parameter.detach().clone()
            with torch.no_grad():
                parameter.copy_(clones[name])
                stale = pair.tensors()
                parameter.copy_(noised)
            await pair.publish(stale)
            assert await pair.gap() > LIMIT
        finally:
            await pair.engine.stop()

    asyncio.run(check())
