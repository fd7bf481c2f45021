"""The vLLM engine.

Facts that this file rests on (vLLM 0.32): with tied embeddings a reload leaves the head stale, so the
model is built untied and gets ``lm_head.weight`` with every publish; nothing is read from disk at
start, the first publish brings the weights.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl.config.schema import Config
from rl.pretrained import resolve
from rl.rollout.engine import DirtyEngineError, Generation
from rl.sync.base import WeightManifest
from rl.types import PolicyVersion, SamplingParams, VersionSpan


class VllmEngine:
    """`Engine` over ``AsyncLLM``."""

    def __init__(self, config: Config, *, index: int = 0, trained: bool = True) -> None:
        self._config, self._index, self._trained = config, index, trained
        self._llm: Any = None
        self._version = PolicyVersion(0, 0)
        self._dirty = trained  # dummy weights until the first commit
        self._running: set[str] = set()
        self._tokens = 0
        rollout = config.rollout
        self._context = rollout.max_model_len or config.prompt.max_tokens + rollout.max_response_tokens

    async def start(self) -> None:
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        config, rollout = self._config, self._config.rollout
        path = resolve(config.model.path)
        settings: dict[str, Any] = dict(
            model=path,
            revision=config.model.revision,
            trust_remote_code=config.model.trust_remote_code,
            dtype=rollout.dtype,
            max_model_len=self._context,
            max_num_seqs=rollout.max_sequences,
            tensor_parallel_size=rollout.tensor_parallel,
            distributed_executor_backend="uni" if rollout.tensor_parallel == 1 else "mp",
            enforce_eager=rollout.enforce_eager,
            logprobs_mode="processed_logprobs",
            generation_config="vllm",
            worker_extension_cls="rl.rollout.vllm_worker.SyncExtension",
            seed=config.seed,
            disable_log_stats=True,
        )
        if self._trained:
            settings |= {"load_format": "dummy", "hf_overrides": {"tie_word_embeddings": False}}
        if config.device == "cpu" or not _has_gpu():
            settings["kv_cache_memory_bytes"] = int(rollout.cache_gb * 2**30)
            # A seeded request whose prompt is split over two batches kills the CPU engine
            # ("CPU Generator does not use offset"): prompts go in whole.
            settings["enable_chunked_prefill"] = False
            settings["max_num_batched_tokens"] = max(2048, self._context)
            # The CPU default of 128 lets no short prompt be shared by a group: its blocks must be full.
            settings["block_size"] = 32
        else:
            settings["gpu_memory_utilization"] = rollout.gpu_memory_utilization
            settings["enable_sleep_mode"] = config.colocate
        self._llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**settings | rollout.engine_options))

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, seed: int, request_id: str
    ) -> Generation:
        self._refuse_dirty()
        room = self._context - len(prompt_ids)
        if room < 1:
            return _nothing("length")
        from vllm import SamplingParams as VllmParams
        from vllm.sampling_params import RequestOutputKind

        sampling = VllmParams(
            max_tokens=min(params.max_tokens, room),
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            stop=list(params.stop) or None,
            stop_token_ids=[] if params.ignore_eos else list(params.stop_token_ids),
            ignore_eos=True,  # the ids that end a turn are all named above
            include_stop_str_in_output=True,
            detokenize=bool(params.stop),
            seed=seed if params.temperature > 0 else None,
            logprobs=0,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        version, final = self._version, None
        self._running.add(request_id)
        try:
            async for output in self._llm.generate({"prompt_token_ids": list(prompt_ids)}, sampling, request_id):
                final = output
        finally:
            self._running.discard(request_id)
        if final is None:
            return _nothing("aborted")
        answer = final.outputs[0]
        ids = np.array(answer.token_ids, dtype=np.int32)
        logprobs = [entry[int(token)].logprob for token, entry in zip(ids, answer.logprobs or [], strict=False)]
        self._tokens += len(ids)
        finish = {"stop": "stop", "length": "length"}.get(answer.finish_reason, "aborted")
        span = (VersionSpan(version, 0, len(ids)),)
        return Generation(ids, np.array(logprobs, dtype=np.float32), finish, span)  # type: ignore[arg-type]

    async def score(self, rows: Sequence[Sequence[int]], temperature: float) -> list[NDArray[np.float32]]:
        self._refuse_dirty()
        if temperature != 1.0:
            raise ValueError("vLLM gives prompt log-probs at temperature 1 only")
        return list(await asyncio.gather(*(self._score(row, i) for i, row in enumerate(rows))))

    async def _score(self, row: Sequence[int], index: int) -> NDArray[np.float32]:
        from vllm import SamplingParams as VllmParams

        # The context must have room for one sampled token, so the last token's log-prob comes as a prompt's.
        sampling = VllmParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
        final: Any = None
        async for output in self._llm.generate({"prompt_token_ids": list(row)}, sampling, f"score-{id(row)}-{index}"):
            final = output
        values = [
            0.0 if entry is None else entry[token].logprob
            for token, entry in zip(row, final.prompt_logprobs, strict=True)
        ]
        return np.array(values, dtype=np.float32)

    async def begin_update(self, manifest: WeightManifest) -> None:
        await self._llm.pause_generation(mode="keep")
        self._dirty = True

    async def receive_weights(self, manifest: WeightManifest) -> None:
        first = 1 + self._index * self._config.rollout.tensor_parallel
        counts = await self._llm.collective_rpc("hone_load", args=(dataclasses.astuple(manifest), first))
        if any(count != len(manifest.names) for count in counts):
            raise RuntimeError(f"engine loaded {counts} tensors of {len(manifest.names)}")

    async def commit_update(self, manifest: WeightManifest) -> None:
        await self._llm.reset_prefix_cache()
        self._version, self._dirty = manifest.version, False
        await self._llm.resume_generation()

    async def abort_update(self, manifest: WeightManifest) -> None:
        """Loading is in place: the engine stays dirty until a whole publish has been committed."""
        await self._llm.resume_generation()

    async def pause(self) -> None:
        await self._llm.pause_generation(mode="keep")

    async def resume(self) -> None:
        await self._llm.resume_generation()

    async def abort(self, request_ids: Sequence[str] | None = None) -> None:
        for request_id in list(self._running if request_ids is None else request_ids):
            await self._llm.abort(request_id)

    async def sleep(self) -> None:
        """Frees weights and cache (GPU only)."""
        await self._llm.sleep(level=2)
        self._dirty = True

    async def wake(self) -> None:
        await self._llm.wake_up()

    def version(self) -> PolicyVersion:
        return self._version

    def status(self) -> dict[str, Any]:
        return {"running": len(self._running), "tokens": self._tokens, "version": tuple(self._version)}

    async def stop(self) -> None:
        if self._llm is not None:
            self._llm.shutdown()
            self._llm = None

    def _refuse_dirty(self) -> None:
        if self._dirty:
            raise DirtyEngineError("the engine has no complete weights; publish them first")


def _nothing(finish: Any) -> Generation:
    return Generation(np.zeros(0, np.int32), np.zeros(0, np.float32), finish, ())


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()
