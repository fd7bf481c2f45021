"""Several micro-batches as one `TokenBatch`, and back: what `Objective.token_advantages` is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rl.objectives.base import TokenBatch


def join(batches: Sequence[TokenBatch]) -> TokenBatch:
    """All rows of a rank's step in one batch, micro-batch after micro-batch. Nothing is copied back.

    Args:
        batches: at least one, of the same step, with the same signals.
    """
    first = batches[0]

    def cat(name: str) -> Tensor | None:
        parts = [getattr(batch, name) for batch in batches]
        return None if parts[0] is None else torch.cat(parts)

    def tables(name: str) -> dict[str, Tensor]:
        columns: list[Mapping[str, Tensor]] = [getattr(batch, name) for batch in batches]
        return {key: torch.cat([column[key] for column in columns]) for key in columns[0]}

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
        vocab=tables("vocab"),
        extra=tables("extra"),
        group_ids=cat("group_ids"),
        groups=first.groups,
        features=tables("features"),
    )


def split(values: Tensor, batches: Sequence[TokenBatch]) -> list[Tensor]:
    """A ``[T]`` tensor of the joined batch, one piece for each micro-batch."""
    return list(torch.split(values, [len(batch.mask) for batch in batches]))
