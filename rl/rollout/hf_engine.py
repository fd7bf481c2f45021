"""The Hugging Face engine: slow and exact, the reference for tests and for deterministic runs.

Each request is sampled alone with a generator of its own, so its result depends on its prompt, seed
and the weights, never on what else runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl.config.schema import Config
from rl.data.tokens import load_tokenizer
from rl.pretrained import resolve
from rl.rollout.engine import DirtyEngineError, Generation
from rl.sync.base import WeightManifest
from rl.sync.collective import receive
from rl.sync.file import read_tensors
from rl.types import PolicyVersion, SamplingParams, VersionSpan


class HfEngine:
    """`Engine` over ``AutoModelForCausalLM``."""

    def __init__(self, config: Config, *, index: int = 0, trained: bool = True) -> None:
        self._config, self._index = config, index
        self._version = PolicyVersion(0, 0)
        self._dirty = trained  # until the trainer's first commit
        self._aborted: set[str] = set()
        self._running: set[str] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._turn = asyncio.Lock()
        self._tokens = 0
        rollout = config.rollout
        self._context = rollout.max_model_len or config.prompt.max_tokens + rollout.max_response_tokens

    async def start(self) -> None:
        from transformers import AutoModelForCausalLM

        dtype = getattr(torch, self._config.rollout.dtype)
        self._model = AutoModelForCausalLM.from_pretrained(resolve(self._config.model.path), dtype=dtype).eval()
        self._tokenizer = load_tokenizer(self._config.model)

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, seed: int, request_id: str
    ) -> Generation:
        if self._dirty:
            raise DirtyEngineError("the engine has no complete weights; publish them first")
        self._running.add(request_id)
        try:
            async with self._turn:
                await self._open.wait()
                return await asyncio.to_thread(self._sample, list(prompt_ids), params, seed, request_id)
        finally:
            self._running.discard(request_id)
            self._aborted.discard(request_id)

    @torch.no_grad()
    def _sample(self, prompt: list[int], params: SamplingParams, seed: int, request_id: str) -> Generation:
        budget = min(params.max_tokens, self._context - len(prompt))
        generator = torch.Generator().manual_seed(seed)
        inputs, cache = torch.tensor([prompt]), None
        ids: list[int] = []
        logprobs: list[float] = []
        finish: Any = "length"
        while len(ids) < budget:
            if request_id in self._aborted:
                finish = "aborted"
                break
            out = self._model(inputs, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            distribution = torch.log_softmax(self._processed(out.logits[0, -1].float(), params, prompt + ids), -1)
            if params.temperature == 0:
                token = int(distribution.argmax())
            else:
                token = int(torch.multinomial(distribution.exp(), 1, generator=generator))
            ids.append(token)
            logprobs.append(float(distribution[token]))
            if not params.ignore_eos and token in params.stop_token_ids:
                finish = "stop"
                break
            if params.stop and any(s in self._tokenizer.decode(ids) for s in params.stop):
                finish = "stop"
                break
            inputs = torch.tensor([[token]])
        self._tokens += len(ids)
        spans = (VersionSpan(self._version, 0, len(ids)),)
        return Generation(np.array(ids, np.int32), np.array(logprobs, np.float32), finish, spans)

    def _processed(self, logits: torch.Tensor, params: SamplingParams, seen: list[int]) -> torch.Tensor:
        """Penalty, temperature, then truncation: the order that vLLM has."""
        if params.repetition_penalty != 1.0:
            index = torch.tensor(sorted(set(seen)))
            values = logits[index]
            logits[index] = torch.where(
                values > 0, values / params.repetition_penalty, values * params.repetition_penalty
            )
        if params.temperature > 0:
            logits = logits / params.temperature
        if params.min_p > 0:
            probabilities = logits.softmax(-1)
            logits = logits.masked_fill(probabilities < params.min_p * probabilities.max(), -torch.inf)
        if params.top_k > 0:
            logits = logits.masked_fill(logits < logits.topk(params.top_k).values[-1], -torch.inf)
        if params.top_p < 1:
            ordered, order = logits.sort(descending=True)
            before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
            logits = logits.index_fill(0, order[before >= params.top_p], -torch.inf)
        return logits

    async def score(self, rows: Sequence[Sequence[int]], temperature: float) -> list[NDArray[np.float32]]:
        if self._dirty:
            raise DirtyEngineError("the engine has no complete weights; publish them first")
        return [await asyncio.to_thread(self._score, list(row), temperature) for row in rows]

    @torch.no_grad()
    def _score(self, row: list[int], temperature: float) -> NDArray[np.float32]:
        ids = torch.tensor([row])
        logits = self._model(ids, use_cache=False).logits[0, :-1].float() / temperature
        picked = torch.log_softmax(logits, -1).gather(-1, ids[0, 1:, None]).squeeze(-1)
        return np.concatenate([np.zeros(1, np.float32), picked.numpy()])

    async def begin_update(self, manifest: WeightManifest) -> None:
        self._open.clear()
        self._dirty = True

    async def receive_weights(self, manifest: WeightManifest) -> None:
        async with self._turn:
            await asyncio.to_thread(self._load, manifest)

    @torch.no_grad()
    def _load(self, manifest: WeightManifest) -> None:
        if manifest.transport == "file":
            tensors = read_tensors(manifest)
        else:
            tensors = receive(manifest, 1 + self._index, torch.device("cpu"))
        parameters = dict(self._model.named_parameters())
        tied = self._model.config.tie_word_embeddings
        missing = set(parameters)
        for name, tensor in tensors:
            if name == "lm_head.weight" and tied:
                continue  # the same tensor as the embedding here
            parameters[name].copy_(tensor)
            missing.discard(name)
        if missing:
            raise RuntimeError(f"the publish lacks {sorted(missing)[:5]}")

    async def commit_update(self, manifest: WeightManifest) -> None:
        self._version, self._dirty = manifest.version, False
        self._open.set()

    async def abort_update(self, manifest: WeightManifest) -> None:
        self._open.set()

    async def pause(self) -> None:
        self._open.clear()

    async def resume(self) -> None:
        self._open.set()

    async def abort(self, request_ids: Sequence[str] | None = None) -> None:
        self._aborted.update(self._running if request_ids is None else request_ids)

    async def sleep(self) -> None:
        """Nothing to free on CPU."""

    async def wake(self) -> None:
        """Nothing was freed."""

    def version(self) -> PolicyVersion:
        return self._version

    def status(self) -> dict[str, Any]:
        return {"running": len(self._running), "tokens": self._tokens, "version": tuple(self._version)}

    async def stop(self) -> None:
        self._model = None
