"""Log-probs, entropy and vocabulary terms of chosen positions, in chunks of logits.

Float32 logits of all positions at once would be the largest tensor of the whole step; here at most
``chunk`` positions have theirs at a time. With several chunks they are recomputed in the backward
pass; a single chunk keeps its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rl.objectives.base import VocabTerm

Head = Callable[[Tensor], Tensor]


def chunked_logprobs(
    hidden: Tensor,
    head: Head,
    targets: Tensor,
    temperature: Tensor,
    *,
    chunk: int,
    terms: Sequence[VocabTerm] = (),
    ref_hidden: Tensor | None = None,
    ref_head: Head | None = None,
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Log-probs of ``targets``, entropies, and the terms' values.

    Args:
        hidden: ``[N, D]`` last hidden states before each target.
        head: maps ``[C, D]`` to logits ``[C, V]``.
        targets: ``[N]`` token ids.
        temperature: ``[N]``; logits are divided by it.
        chunk: positions whose logits exist at once.
        ref_hidden, ref_head: the reference model's, for terms that need it.

    Returns:
        ``[N]`` log-probs with gradient, ``[N]`` entropies in nats without, and ``{name: [N]}`` with.
    """
    count = hidden.shape[0]
    outputs: list[tuple[Tensor, ...]] = []
    several = count > chunk and torch.is_grad_enabled()

    def run(h: Tensor, t: Tensor, temp: Tensor, ref: Tensor | None) -> tuple[Tensor, ...]:
        ref_logits = None
        if ref is not None and ref_head is not None:
            with torch.no_grad():
                ref_logits = ref_head(ref)
        return _Values.apply(head(h), t, temp, ref_logits, tuple(terms))

    for start in range(0, count, chunk):
        part = slice(start, start + chunk)
        arguments = (hidden[part], targets[part], temperature[part], None if ref_hidden is None else ref_hidden[part])
        outputs.append(checkpoint(run, *arguments, use_reentrant=False) if several else run(*arguments))
    if not outputs:
        # The head takes part too: ZeRO reduces gradients as they arrive, the same ones on every rank.
        nothing = hidden.sum() * 0 + head(hidden.new_zeros(1, hidden.shape[1])).sum() * 0
        empty = nothing + hidden.new_zeros(0, dtype=torch.float32)
        return empty, empty.detach(), {term.name: empty for term in terms}
    joined = [torch.cat(column) for column in zip(*outputs, strict=True)]
    return joined[0], joined[1], {term.name: joined[2 + i] for i, term in enumerate(terms)}


class _Values(torch.autograd.Function):
    """Log-probs, entropies and terms of one chunk's logits.

    Left to itself, autograd keeps and makes several tensors of the logits' size. Here forward and
    backward go over a few rows at a time, so that beside the logits only their gradient is that large.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        targets: Tensor,
        temperature: Tensor,
        ref_logits: Tensor | None,
        terms: tuple[VocabTerm, ...],
    ) -> tuple[Tensor, ...]:
        ctx.terms = terms
        ctx.save_for_backward(logits, targets, temperature, ref_logits)
        columns = []
        for rows in _slices(logits):
            scaled = logits[rows].float() / temperature[rows, None]
            logprobs, normaliser = _logprobs(scaled, targets[rows])
            # H = logZ - E[logit]
            entropy = normaliser - (torch.exp(scaled - normaliser[:, None]) * scaled).sum(-1)
            columns.append([logprobs, entropy, *_terms(scaled, ref_logits, temperature, rows, terms)])
        logprobs, entropy, *extra = [torch.cat(column) for column in zip(*columns, strict=True)]
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy, *extra

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        logits, targets, temperature, ref_logits = ctx.saved_tensors
        out = torch.empty_like(logits)
        for rows in _slices(logits):
            part = logits[rows].detach().requires_grad_()
            with torch.enable_grad():
                scaled = part.float() / temperature[rows, None]
                logprobs, _ = _logprobs(scaled, targets[rows])
                values = [logprobs, *_terms(scaled, ref_logits, temperature, rows, ctx.terms)]
            wanted = [gradients[0], *gradients[2:]]
            used = [i for i, value in enumerate(values) if value.requires_grad]
            (out[rows],) = torch.autograd.grad([values[i] for i in used], part, [wanted[i][rows] for i in used])
        return out, None, None, None, None


def _logprobs(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probs of the targets and the normaliser, both ``[C]``, of logits ``[C, V]`` at the temperature."""
    normaliser = torch.logsumexp(logits, dim=-1)
    return logits.gather(-1, targets[:, None]).squeeze(-1) - normaliser, normaliser


def _terms(
    logits: Tensor, ref_logits: Tensor | None, temperature: Tensor, rows: slice, terms: Sequence[VocabTerm]
) -> list[Tensor]:
    """The terms' values on some rows: ``logits`` are already at the temperature, the reference's are not."""
    ref = None if ref_logits is None else ref_logits[rows].float() / temperature[rows, None]
    return [term.fn(logits, ref if term.needs_ref else None) for term in terms]


def _slices(logits: Tensor) -> list[slice]:
    """Rows in at most sixteen parts."""
    size = -(-logits.shape[0] // 16)
    return [slice(start, start + size) for start in range(0, logits.shape[0], size)]
