"""SAGE's guides: log q of each token, which reshapes the reference of the KL term to q * reference.

"SAGE: Shaping Anchors for Guided Exploration in RLVR of LLMs", arXiv 2605.18864. A guide is a plain
function ``fn(batch, **options) -> log q [T]`` of detached tensors, called at every loss. No gradient
flows through it. Its caller sets masked positions to 0 and keeps the rest within +-log(1e8).
Steps count from 1 in `TokenBatch`; schedules from 0.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor

from rl.objectives.base import TokenBatch
from rl.objectives.noise import normal, uniform
from rl.objectives.parts import needs
from rl.objectives.schedules import warm_restarts
from rl.objectives.segments import log_ratio, segment_sum, spread
from rl.types import Trajectory

Guide = Callable[..., Tensor]
LOG_Q_LIMIT = math.log(1e8)


def log_q(guide: Guide, batch: TokenBatch) -> Tensor:
    """``[T]`` of a guide: detached, finite, bounded in log space, 0 outside the mask.

    Raises:
        ValueError: the guide's values have the wrong shape or are not finite.
    """
    with torch.no_grad():
        seen = dataclasses.replace(
            batch,
            logprobs=batch.logprobs.detach(),
            values=None if batch.values is None else batch.values.detach(),
            vocab={name: values.detach() for name, values in batch.vocab.items()},
        )
        values = guide(seen)
        if values.shape != batch.mask.shape:
            raise ValueError(f"the guide returned shape {tuple(values.shape)} for {tuple(batch.mask.shape)} tokens")
        values = torch.where(batch.mask > 0, values, torch.zeros_like(values))
        if bool(torch.isnan(values).any()):
            raise ValueError("the guide returned NaN at a trained token; log q must be a number")
        return values.clamp(-LOG_Q_LIMIT, LOG_Q_LIMIT)


def branch(
    batch: TokenBatch, *, ratio: float = 0.3, tau: float = 1.2, q_min: float = 0.6, q_max: float = 1.4
) -> Tensor:
    """q = 1 + ratio * relu(H - tau), clipped: loosens the anchor where the policy itself is undecided.

    Args:
        tau: entropy in nats from which q rises above 1.
    """
    assert batch.entropy is not None, "the branch guide needs entropies"
    return torch.log((1 + ratio * torch.relu(batch.entropy - tau)).clamp(q_min, q_max))


def token(
    batch: TokenBatch,
    *,
    norm: str = "minmax",
    alpha: tuple[float, float] = (0.3, 0.1),
    sigma: tuple[float, float] = (0.25, 0.1),
    steps: int = 1000,
    q_min: float = 0.6,
    q_max: float = 1.4,
) -> Tensor:
    """q = 1 + w (alpha + sigma N(0, 1)), clipped, with w the sampled token's surprisal, normalised in its sequence.

    Args:
        norm: ``minmax`` (5 and 95 % quantiles), ``rank`` or ``zscore``.
        alpha, sigma: start and end of their schedules over ``steps``.
    """
    try:
        normalise = NORMS[norm]
    except KeyError:
        raise ValueError(f"norm must be one of {', '.join(NORMS)}, but is {norm!r}") from None
    weights = torch.zeros_like(batch.mask)
    bounds = batch.cu_seqlens.tolist()
    for start, end in itertools.pairwise(bounds):
        inside = batch.mask[start:end] > 0
        if inside.any():
            weights[start:end][inside] = normalise(-batch.logprobs[start:end][inside]).to(weights.dtype)
    a, s = (warm_restarts(batch.step - 1, start=x[0], end=x[1], steps=steps) for x in (alpha, sigma))
    return torch.log((1 + a * weights + s * weights * normal(batch, "token")).clamp(q_min, q_max))


def random(
    batch: TokenBatch,
    *,
    share: tuple[float, float] = (0.1, 0.0),
    sigma: tuple[float, float] = (0.15, 0.05),
    steps: int = 1000,
    q_min: float = 0.6,
    q_max: float = 1.4,
) -> Tensor:
    """q = 1 + sigma N(0, 1), clipped, on a random ``share`` of the tokens; 1 on the others."""
    eps, s = (warm_restarts(batch.step - 1, start=x[0], end=x[1], steps=steps) for x in (share, sigma))
    noisy = torch.log((1 + s * normal(batch, "random")).clamp(q_min, q_max))
    return torch.where(uniform(batch, "chosen") < eps, noisy, torch.zeros_like(noisy))


def surprisal(batch: TokenBatch, *, eta: float = 0.25) -> Tensor:
    """q = pi^-eta. Its fixed point is (reference e^(r / beta))^(1 / (1 + eta)): an entropy bonus of beta eta."""
    return -eta * batch.logprobs


@needs("teacher_logprobs")
def teacher_mixture(batch: TokenBatch, *, share: float = 0.1) -> Tensor:
    """q = 1 - share + share * teacher / reference: the anchor is a mixture, and has mass 1."""
    if not 0 <= share < 1:
        raise ValueError(f"share must be at least 0 and below 1, but is {share}")
    assert batch.teacher_logprobs is not None and batch.ref_logprobs is not None, "needs a teacher and a reference"
    return torch.log1p(share * torch.expm1(log_ratio(batch.teacher_logprobs, batch.ref_logprobs)[0]))


def answer_counts(members: list[Trajectory]) -> list[dict[str, float]]:
    """1 / (samples of the group with the same answer); the answer is the last line that is not empty."""
    answers = [next((x.strip() for x in reversed(t.completion_text.splitlines()) if x.strip()), "") for t in members]
    count = Counter(answers)
    return [{"novelty": 1 / count[answer]} for answer in answers]


@needs(features=answer_counts)
def novelty(batch: TokenBatch, *, kappa: float = 0.5) -> Tensor:
    """q(y) = exp(kappa / n) for an answer that n samples of the group gave, spread evenly over its tokens."""
    count = batch.mask.new_zeros(len(batch.sample_ids))
    _, index = torch.unique(batch.sample_ids, return_inverse=True)
    count = count.index_add(0, index, segment_sum(torch.ones_like(batch.mask), batch))[index]
    return spread(kappa * batch.features["novelty"].to(count.dtype) / count.clamp(min=1), batch)


def minmax(surprisals: Tensor) -> Tensor:
    """Into [0, 1] between the 5 and 95 % quantiles."""
    low, high = torch.quantile(surprisals, surprisals.new_tensor([0.05, 0.95]))
    return ((surprisals - low) / (high - low).clamp(min=1e-6)).clamp(0, 1)


def rank(surprisals: Tensor) -> Tensor:
    """Rank over n - 1; equal values keep their order."""
    order = torch.argsort(torch.argsort(surprisals, stable=True), stable=True)
    return order.to(surprisals.dtype) / max(1, len(surprisals) - 1)


def zscore(surprisals: Tensor) -> Tensor:
    """Sigmoid of the z-score with the population's std."""
    return torch.sigmoid((surprisals - surprisals.mean()) / surprisals.std(correction=0).clamp(min=1e-6))


NORMS: dict[str, Callable[[Tensor], Tensor]] = {"minmax": minmax, "rank": rank, "zscore": zscore}
GUIDES: dict[str, Guide] = {
    "branch": branch,
    "token": token,
    "random": random,
    "surprisal": surprisal,
    "teacher_mixture": teacher_mixture,
    "novelty": novelty,
}
