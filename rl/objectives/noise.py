"""Random numbers for tokens that depend on (run seed, step, sample) alone.

Packing, ranks, recomputation and the order of micro-batches do not change them.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from rl.objectives.base import TokenBatch


def normal(batch: TokenBatch, stream: str) -> Tensor:
    """``[T]`` draws from N(0, 1). Two streams of the same tokens are independent."""
    return _per_segment(batch, stream, torch.randn)


def uniform(batch: TokenBatch, stream: str) -> Tensor:
    """``[T]`` draws from [0, 1)."""
    return _per_segment(batch, stream, torch.rand)


def _per_segment(batch: TokenBatch, stream: str, draw: object) -> Tensor:
    bounds = batch.cu_seqlens.tolist()
    pieces = []
    for sample, start, end in zip(batch.sample_ids.tolist(), bounds[:-1], bounds[1:], strict=True):
        text = f"{batch.run_seed}\x1f{batch.step}\x1f{sample}\x1f{stream}"
        seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
        # Drawn on the CPU: the same numbers on every device.
        generator = torch.Generator().manual_seed(seed)
        pieces.append(draw(end - start, generator=generator, dtype=torch.float32))  # type: ignore[operator]
    return torch.cat(pieces).to(batch.mask.device, batch.mask.dtype)
