"""Attention over a packed row: each segment attends to itself alone, and to its group's prompt.

A `Plan` says which tokens are queries together and which keys each of them sees. It is made once for a
packed row and run by every layer, as the attention function ``hone_packed`` of transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

NAME = "hone_packed"
PADDING = 1.25
"""Rows are attended in one call while that pads them by at most this factor."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A stem of tokens and the branches that continue it, one after another from ``start``.

    A lone segment is a stem without branches.
    """

    start: int
    stem: int
    branches: tuple[int, ...] = ()


@dataclass(slots=True)
class Rows:
    """``R`` rows of queries that are attended in one call; short rows are padded on the right."""

    queries: Tensor
    """``[R, Q]`` token indices; padding repeats a real token."""
    real: Tensor
    """Flat indices into ``[R * Q]`` of what is not padding."""
    keys: Tensor | None = None
    """``[R, K]`` token indices; ``None``: the queries themselves, causally."""
    stems: Tensor | None = None
    """``[R]`` lengths of the stems that ``keys`` begin with, each padded to ``pad``."""
    pad: int = 0
    masks: dict[int | None, Tensor] = field(default_factory=dict)
    """By sliding window."""

    def mask(self, window: int | None) -> Tensor | None:
        """``[R or 1, 1, Q, K]``, true where a query sees a key; ``None`` for a plain causal mask."""
        length = self.queries.shape[1]
        if self.keys is None and (window is None or length <= window):
            return None
        if window not in self.masks:
            self.masks[window] = self._make(window)
        return self.masks[window]

    def _make(self, window: int | None) -> Tensor:
        device, length = self.queries.device, self.queries.shape[1]
        query = torch.arange(length, device=device)
        if self.stems is None:
            stems, key, real = query.new_zeros(1), query, torch.ones(1, length, dtype=torch.bool, device=device)
            at_key = key[None]
        else:
            stems, key = self.stems, torch.arange(self.pad + length, device=device)
            in_stem = key < self.pad
            real = ~in_stem[None] | (key[None] < stems[:, None])
            at_key = torch.where(in_stem[None], key[None], key[None] - self.pad + stems[:, None])
        distance = (stems[:, None] + query)[:, :, None] - at_key[:, None, :]
        seen = (distance >= 0) & real[:, None, :]
        if window is not None:
            seen &= distance < window
        return seen[:, None]


@dataclass(slots=True)
class Plan:
    """Attention over one packed row."""

    calls: list[Rows]
    order: Tensor
    """``[U]``: where each token's output lies among the outputs of all calls."""


def make_plan(trees: Sequence[Tree], device: torch.device) -> Plan:
    """The calls that attend every token of ``trees``, which lie one after another."""
    stems = [(tree.start, tree.stem) for tree in trees]
    calls: list[Rows] = []
    order: list[np.ndarray] = []
    for first, last in _runs([length for _, length in stems]):
        queries, real, tokens = _padded(stems[first:last])
        calls.append(Rows(torch.from_numpy(queries).to(device), torch.from_numpy(real).to(device)))
        order.append(tokens)
    for tree in trees:
        if not tree.branches:
            continue
        starts = tree.start + tree.stem + np.cumsum([0, *tree.branches[:-1]])
        branches = list(zip(starts.tolist(), tree.branches, strict=True))
        for first, last in _runs(list(tree.branches)):
            queries, real, tokens = _padded(branches[first:last])
            stem = np.broadcast_to(np.arange(tree.start, tree.start + tree.stem), (last - first, tree.stem))
            calls.append(
                Rows(
                    torch.from_numpy(queries).to(device),
                    torch.from_numpy(real).to(device),
                    keys=torch.from_numpy(np.concatenate([stem, queries], axis=1)).to(device),
                    stems=torch.tensor([tree.stem], device=device),
                    pad=tree.stem,
                )
            )
            order.append(tokens)
    return Plan(calls, torch.from_numpy(np.argsort(np.concatenate(order))).to(device))


def _runs(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Neighbours to attend together: padded to the longest, a run grows by at most `PADDING`."""
    runs: list[tuple[int, int]] = []
    first, longest, total = 0, 0, 0
    for i, length in enumerate(lengths):
        if i > first and max(longest, length) * (i + 1 - first) > PADDING * (total + length):
            runs.append((first, i))
            first, longest, total = i, 0, 0
        longest, total = max(longest, length), total + length
    return [*runs, (first, len(lengths))]


def _padded(spans: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Indices ``[R, Q]`` of spans (start, length), the flat places of the real ones, and these as a list."""
    longest = max(length for _, length in spans)
    inside = np.arange(longest)[None] < np.array([length for _, length in spans])[:, None]
    starts = np.array([start for start, _ in spans])[:, None]
    indices = np.where(inside, starts + np.arange(longest)[None], starts)
    return indices, inside.ravel().nonzero()[0], indices[inside]


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
    """Attention as the row's plan says.

    Right padding under a causal mask is never seen by a real query, so most calls need no mask tensor.

    Args:
        query: ``[1, H, U, D]``; key and value ``[1, K, U, D]`` with ``H`` a multiple of ``K``.
        kwargs: ``hone_plan``, the row's `Plan`; one causal segment when it is missing.

    Returns:
        ``[1, U, H, D]``.
    """
    if kwargs.get("softcap") is not None:
        raise ValueError("attention with a logit softcap: use model.attention=eager for this family")
    plan = kwargs.get("hone_plan") or make_plan([Tree(0, query.shape[2])], query.device)
    # torch's CPU kernel is four times slower in bfloat16 than in float32 on short rows (98 ms and
    # 24 ms, forward and backward of 32 rows of 68 tokens), and level on rows of 512.
    dtype = torch.float32 if query.device.type == "cpu" else query.dtype
    q, k, v = (x[0].transpose(0, 1).to(dtype) for x in (query, key, value))
    outputs = []
    for call in plan.calls:
        keys = call.queries if call.keys is None else call.keys
        mask = call.mask(sliding_window)
        with torch.autocast(query.device.type, enabled=False):
            out = F.scaled_dot_product_attention(
                q[call.queries].transpose(1, 2),
                k[keys].transpose(1, 2),
                v[keys].transpose(1, 2),
                attn_mask=mask,
                dropout_p=dropout if module.training else 0.0,
                is_causal=mask is None,
                scale=scaling,
                enable_gqa=q.shape[1] != k.shape[1],
            )
        outputs.append(out.transpose(1, 2).flatten(0, 1)[call.real])
    return torch.cat(outputs)[plan.order][None].to(query.dtype), None


def _no_mask(*args: Any, **kwargs: Any) -> None:
    """The plan says what is seen."""
    return None
