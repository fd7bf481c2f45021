"""Attention over a packed row: each segment attends to itself alone, without a mask tensor."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

NAME = "hone_packed"


def register() -> None:
    """Makes ``attn_implementation="hone_packed"`` known to transformers. Idempotent."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, packed_attention)
    AttentionMaskInterface.register(NAME, _no_mask)


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each segment.

    Args:
        query: ``[1, H, T, D]``; key and value ``[1, K, T, D]`` with ``H`` a multiple of ``K``.
        kwargs: ``cu_seq_lens_q`` ``[S + 1]`` gives the segments; one segment when it is missing.

    Returns:
        ``[1, T, H, D]``.
    """
    if kwargs.get("softcap") is not None:
        raise ValueError("attention with a logit softcap: use model.attention=eager for this family")
    length = query.shape[2]
    cu = kwargs.get("cu_seq_lens_q")
    bounds = [0, length] if cu is None else cu.tolist()
    pieces: list[Tensor] = []
    for first, last in _runs(bounds):
        pieces.append(_attend(module, query, key, value, bounds[first : last + 1], scaling, dropout, sliding_window))
    return torch.cat(pieces, dim=1), None


def _runs(bounds: Sequence[int]) -> list[tuple[int, int]]:
    """Neighbouring segments to attend together: padded to the longest, a run grows by at most a quarter."""
    lengths = [end - start for start, end in itertools.pairwise(bounds)]
    runs: list[tuple[int, int]] = []
    first, longest = 0, 0
    for i, length in enumerate(lengths):
        tokens = bounds[i + 1] - bounds[first]
        if i > first and max(longest, length) * (i + 1 - first) > 1.25 * tokens:
            runs.append((first, i))
            first, longest = i, 0
        longest = max(longest, length)
    return [*runs, (first, len(lengths))]


def _attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: Sequence[int],
    scaling: float | None,
    dropout: float,
    sliding_window: int | None,
) -> Tensor:
    """One call for a run of segments: ``[1, tokens, H, D]``.

    Rows shorter than the longest are padded on the right, where the causal mask keeps the padding out
    of every real token's sight. One call a segment would cost some milliseconds each in the backward.
    """
    lengths = [end - start for start, end in itertools.pairwise(bounds)]
    longest, part = max(lengths), slice(bounds[0], bounds[-1])
    if min(lengths) == longest:
        places = None
        q, k, v = (_rows(x[0, :, part], len(lengths)) for x in (query, key, value))
    else:
        offsets = torch.tensor(bounds[:-1], device=query.device)[:, None] + torch.arange(longest, device=query.device)
        real = torch.arange(longest, device=query.device) < torch.tensor(lengths, device=query.device)[:, None]
        places = real.flatten().nonzero().squeeze(-1)
        index = torch.where(real, offsets, bounds[0]).flatten()
        q, k, v = (_rows(x[0].index_select(1, index), len(lengths)) for x in (query, key, value))
    if query.device.type == "cpu":
        # torch's CPU kernel is four times slower in bfloat16 than in float32 on short rows (98 ms and
        # 24 ms, forward and backward of 32 rows of 68 tokens), and level on rows of 512.
        q, k, v = q.float(), k.float(), v.float()
    mask = None
    if sliding_window is not None and longest > sliding_window:
        mask = _band(longest, sliding_window, query.device)
    with torch.autocast(query.device.type, enabled=False):
        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=dropout if module.training else 0.0,
            is_causal=mask is None,
            scale=scaling,
            enable_gqa=q.shape[1] != k.shape[1],
        )
    flat = out.transpose(1, 2).reshape(1, -1, out.shape[1], out.shape[3]).to(value.dtype)
    return flat if places is None else flat.index_select(1, places)


def _rows(x: Tensor, rows: int) -> Tensor:
    """``[H, rows * L, D]`` as ``[rows, H, L, D]``."""
    return x.unflatten(1, (rows, -1)).transpose(0, 1)


def _band(length: int, window: int, device: torch.device) -> Tensor:
    """True where key ``j`` is at most ``window - 1`` before query ``i``."""
    i = torch.arange(length, device=device)
    distance = i[:, None] - i[None, :]
    return (distance >= 0) & (distance < window)


def _no_mask(*args: Any, **kwargs: Any) -> None:
    """Segments are told apart by their bounds."""
    return None
