"""Attention over a packed row: each segment attends to itself alone, without a mask tensor."""

from __future__ import annotations

import itertools
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
    pieces = []
    for start, end in itertools.pairwise(bounds):
        q, k, v = (x[:, :, start:end] for x in (query, key, value))
        mask = None
        if sliding_window is not None and end - start > sliding_window:
            mask = _band(end - start, sliding_window, query.device)
        pieces.append(
            F.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask,
                dropout_p=dropout if module.training else 0.0,
                is_causal=mask is None,
                scale=scaling,
                enable_gqa=q.shape[1] != k.shape[1],
            )
        )
    return torch.cat(pieces, dim=2).transpose(1, 2).contiguous(), None


def _band(length: int, window: int, device: torch.device) -> Tensor:
    """True where key ``j`` is at most ``window - 1`` before query ``i``."""
    i = torch.arange(length, device=device)
    distance = i[:, None] - i[None, :]
    return (distance >= 0) & (distance < window)


def _no_mask(*args: Any, **kwargs: Any) -> None:
    """Segments are told apart by their bounds."""
    return None
