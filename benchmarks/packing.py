"""Packing against padding: the share of processed tokens that are real, and the speed-up.

    python benchmarks/packing.py                      # SmolLM2-135M, 48 responses of skewed lengths, two cores

Both sides run the same forward and backward of the same model on the same rows, in micro-batches of the
same number of processed tokens, in turns. Padded rows are sorted by length, as a careful script would.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from rl.config.schema import Config
from rl.packing import pack
from rl.pretrained import resolve
from rl.training.model import PolicyModule, load_model
from rl.training.packed import pack_tokens

DEVICE = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=2048, help="processed tokens of a micro-batch")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    config = Config()
    config.model.path = str(resolve("smollm2-135m"))
    policy = PolicyModule(load_model(config.model), config)
    g = np.random.default_rng(0)
    lengths = np.minimum(512, 24 + (g.pareto(1.1, arguments.rows) * 24).astype(int))
    rows = [g.integers(3, 49000, n) for n in lengths]
    bins = pack(lengths.tolist(), arguments.tokens)
    padded = padded_bins(lengths, arguments.tokens)
    useful = int(lengths.sum())
    processed = sum(sum(lengths[i] for i in members) for members in bins)
    spent = sum(len(members) * max(lengths[i] for i in members) for members in padded)
    print(f"{len(rows)} rows, mean {lengths.mean():.0f}, longest {lengths.max()}, median {np.median(lengths):.0f}")
    shares = f"packed {useful / processed:.3f} (wanted: above 0.97), padded {useful / spent:.3f}"
    print(f"useful over processed tokens: {shares}")
    fill = useful / (len(bins) * arguments.tokens)
    print(f"packed: {len(bins)} micro-batches, {fill:.3f} full; padded: {len(padded)}")
    ratios = []
    for number in range(arguments.rounds + 1):
        fast = timed(lambda: run(policy, rows, bins, pad=False))
        slow = timed(lambda: run(policy, rows, padded, pad=True))
        if number:
            ratios.append(slow / fast)
            print(f"round {number}: packed {fast:.2f} s, padded {slow:.2f} s, speed-up {ratios[-1]:.2f}", flush=True)
    print(f"median speed-up {statistics.median(ratios):.2f}")


def padded_bins(lengths: np.ndarray, tokens: int) -> list[list[int]]:
    """Rows sorted by length, as many in a bin as fit after padding to its longest."""
    bins: list[list[int]] = [[]]
    for i in np.argsort(-lengths, kind="stable").tolist():
        if bins[-1] and (len(bins[-1]) + 1) * lengths[bins[-1][0]] > tokens:
            bins.append([])
        bins[-1].append(i)
    return bins


def run(policy: PolicyModule, rows: list[np.ndarray], bins: list[list[int]], *, pad: bool) -> None:
    for members in bins:
        longest = max(len(rows[i]) for i in members)
        filled = [np.pad(rows[i], (0, longest - len(rows[i]))) if pad else rows[i] for i in members]
        chosen = [np.arange(len(row)) > 0 for row in filled]
        policy(pack_tokens(filled, chosen, [1.0] * len(filled), DEVICE))[0].sum().backward()
    policy.zero_grad()


def timed(work: Callable[[], None]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


if __name__ == "__main__":
    main()
