"""A first estimate of memory, from a model's own numbers. Arithmetic only; imports no torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl.config.schema import Config

WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a model decides its memory."""

    parameters: int
    layers: int
    hidden: int
    intermediate: int
    kv_heads: int
    head_dim: int
    vocabulary: int


def read_shape(folder: Path) -> Shape:
    """The shape that ``config.json`` describes; parameters are those of a gated decoder of that shape."""
    c: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    hidden, layers, heads = c["hidden_size"], c["num_hidden_layers"], c["num_attention_heads"]
    kv = c.get("num_key_value_heads") or heads
    dim = c.get("head_dim") or hidden // heads
    wide = c["intermediate_size"]
    layer = hidden * dim * (2 * heads + 2 * kv) + 3 * hidden * wide + 2 * hidden
    tables = c["vocab_size"] * hidden * (1 if c.get("tie_word_embeddings") else 2)
    return Shape(layers * layer + tables + hidden, layers, hidden, wide, kv, dim, c["vocab_size"])


def estimate(config: Config, shape: Shape) -> dict[str, float]:
    """Bytes by name: of one trainer rank, and of one engine.

    Master weights, gradients and AdamW's two moments are float32. Activations count what a
    transformer layer keeps for its backward, about ``10 hidden + 3 intermediate`` numbers a token.
    """
    trainer, rollout, ranks = config.trainer, config.rollout, config.trainer.ranks
    trained = float(shape.parameters)
    if config.model.lora.enabled:
        trained = 2.0 * config.model.lora.rank * shape.layers * (6 * shape.hidden + 3 * shape.intermediate) / 2
    stage = trainer.zero_stage
    weights = 4.0 * shape.parameters / (ranks if stage >= 3 else 1)
    gradients = 4.0 * trained / (ranks if stage >= 2 else 1)
    moments = 0.0 if trainer.offload else 8.0 * trained / (ranks if stage >= 1 else 1)
    tokens, width = trainer.max_tokens_per_microbatch, WIDTH[trainer.dtype]
    per_layer = (10 * shape.hidden + 3 * shape.intermediate) * width
    layers = 1 if config.model.gradient_checkpointing else shape.layers
    activations = float(tokens * per_layer * layers)
    if config.model.gradient_checkpointing:
        activations += float(tokens * shape.hidden * width * shape.layers)
    reference = 4.0 * shape.parameters if config.algorithm.kl_coef and not config.model.lora.enabled else 0.0
    engine = float(WIDTH[rollout.dtype] * shape.parameters) / rollout.tensor_parallel
    token_cache = 2 * shape.layers * shape.kv_heads * shape.head_dim * WIDTH[rollout.dtype]
    context = rollout.max_model_len or config.prompt.max_tokens + rollout.max_response_tokens
    return {
        "trainer: weights": weights,
        "trainer: gradients": gradients,
        "trainer: AdamW moments": moments,
        "trainer: activations": activations,
        "trainer: logits of a chunk": 3.0 * 4 * min(trainer.logits_chunk, tokens) * shape.vocabulary,
        "trainer: reference model": reference,
        "engine: weights": engine,
        "engine: cache that all sequences could fill": float(token_cache * context * rollout.max_sequences),
    }
