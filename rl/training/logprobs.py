"""Log-probs, entropy and vocabulary terms of chosen positions, in chunks of logits.

Float32 logits of all positions at once would be the largest tensor of the whole step; here at most
``chunk`` positions have theirs at a time. With several chunks they are recomputed in the backward
pass; a single chunk keeps its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
        logits = head(h).float() / temp[:, None]
        normaliser = torch.logsumexp(logits, dim=-1)
        logprobs = logits.gather(-1, t[:, None]).squeeze(-1) - normaliser
        with torch.no_grad():
            # H = logZ - E[logit]
            probabilities = torch.exp(logits - normaliser[:, None])
            entropy = normaliser - (probabilities * logits).sum(-1)
        ref_logits = None
        if ref is not None and ref_head is not None:
            with torch.no_grad():
                ref_logits = ref_head(ref).float() / temp[:, None]
        return (
            logprobs,
            entropy.detach(),
            *(term.fn(logits, ref_logits if term.needs_ref else None) for term in terms),
        )

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
