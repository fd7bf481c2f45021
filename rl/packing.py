"""Packing rows into micro-batches and sharing them over ranks. Pure arithmetic on lengths."""

from __future__ import annotations

from collections.abc import Sequence


def pack(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Indices of rows in bins of at most ``max_tokens``: best fit, longest first.

    The result depends only on the lengths and their order; rows within a bin keep their order.

    Raises:
        ValueError: a row alone is longer than a bin.
    """
    bins: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        length = lengths[index]
        if length > max_tokens:
            raise ValueError(
                f"a row of {length} tokens does not fit a micro-batch; raise trainer.max_tokens_per_microbatch "
                f"(now {max_tokens})"
            )
        fitting = [b for b in range(len(bins)) if room[b] >= length]
        if fitting:
            chosen = min(fitting, key=lambda b: (room[b], b))
            bins[chosen].append(index)
            room[chosen] -= length
        else:
            bins.append([index])
            room.append(max_tokens - length)
    return [sorted(members) for members in bins]


def share(lengths: Sequence[int], parts: int) -> list[list[int]]:
    """Indices shared over ``parts`` so that the largest load is small: longest first to the least loaded."""
    loads = [0] * parts
    shares: list[list[int]] = [[] for _ in range(parts)]
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        target = min(range(parts), key=lambda p: (loads[p], len(shares[p]), p))
        shares[target].append(index)
        loads[target] += lengths[index]
    return [sorted(members) for members in shares]
