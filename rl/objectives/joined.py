"""Token advantages of a whole step: several micro-batches as one `TokenBatch`, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rl.objectives.base import Objective, Reduce, TokenBatch


def prepare(
    objective: Objective, batches: Sequence[TokenBatch], reduce: Reduce
) -> list[tuple[Tensor, dict[str, Tensor]]]:
    """Runs ``token_advantages`` once over all micro-batches of a rank's step.

    Collective when the objective normalises over the batch: every rank calls it, also with rows that
    hold no trained token.

    Returns:
        For each micro-batch its advantages ``[T]`` and the tensors that the objective keeps for the loss.
    """
    if not batches:
        return []
    whole = join(batches)
    advantages = split(objective.token_advantages(whole, reduce), batches)
    extra = {name: split(values, batches) for name, values in whole.extra.items()}
    return [(piece, {name: pieces[i] for name, pieces in extra.items()}) for i, piece in enumerate(advantages)]


def join(batches: Sequence[TokenBatch]) -> TokenBatch:
    """All rows of a rank's step in one batch, micro-batch after micro-batch. Nothing is copied back.

    Args:
        batches: at least one, of the same step, with the same signals.
    """
    first = batches[0]

    def cat(name: str) -> Tensor | None:
        parts = [getattr(batch, name) for batch in batches]
        return None if parts[0] is None else torch.cat(parts)

    def tables(name: str, like: str) -> dict[str, Tensor]:
        columns: list[Mapping[str, Tensor]] = [getattr(batch, name) for batch in batches]
        # A micro-batch without rows has no table; its entries are never read.
        zeros = [torch.zeros(len(getattr(batch, like)), device=batch.mask.device) for batch in batches]
        keys = dict.fromkeys(key for column in columns for key in column)
        return {k: torch.cat([c.get(k, z) for c, z in zip(columns, zeros, strict=True)]) for k in keys}

    def must(name: str) -> Tensor:
        joined = cat(name)
        assert joined is not None
        return joined

    offset, bounds = 0, [first.cu_seqlens[:1]]
    for batch in batches:
        bounds.append(batch.cu_seqlens[1:] + offset)
        offset += int(batch.cu_seqlens[-1])
    return TokenBatch(
        logprobs=must("logprobs").detach(),
        mask=must("mask"),
        advantages=must("advantages"),
        rollout_logprobs=must("rollout_logprobs"),
        cu_seqlens=torch.cat(bounds),
        sample_ids=must("sample_ids"),
        kind_ids=must("kind_ids"),
        temperature=must("temperature"),
        step=first.step,
        run_seed=first.run_seed,
        old_logprobs=cat("old_logprobs"),
        ref_logprobs=cat("ref_logprobs"),
        entropy=cat("entropy"),
        values=cat("values"),
        teacher_logprobs=cat("teacher_logprobs"),
        vocab=tables("vocab", "mask"),
        extra=tables("extra", "mask"),
        group_ids=cat("group_ids"),
        groups=first.groups,
        features=tables("features", "sample_ids"),
    )


def split(values: Tensor, batches: Sequence[TokenBatch]) -> list[Tensor]:
    """A ``[T]`` tensor of the joined batch, one piece for each micro-batch."""
    return list(torch.split(values, [len(batch.mask) for batch in batches]))
