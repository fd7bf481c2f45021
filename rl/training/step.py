"""One training step on one rank: signal pre-pass, token advantages, updates."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from rl.objectives.aggregate import token_weights
from rl.objectives.base import Objective, TokenBatch
from rl.objectives.joined import join, split
from rl.training.batch import Counts, StepBatch, StepResult, TrainRow, UpdatePlan
from rl.training.packed import PackedRow, empty_row, pack_rows

GAP_THRESHOLD = 0.1
"""Nats; ``gap/share_above`` counts tokens whose rollout and trainer log-probs differ by more."""


@dataclass(slots=True)
class Micro:
    """A packed micro-batch and the signals that are computed once a step."""

    row: PackedRow
    mask: Tensor
    advantages: Tensor
    rollout_logprobs: Tensor
    sample_ids: Tensor
    kind_ids: Tensor
    temperature: Tensor
    weight: Tensor
    """``[S]``."""
    trajectory_tokens: Tensor
    group_tokens: Tensor
    group_ids: Tensor
    features: dict[str, Tensor]
    extra: dict[str, Tensor] = field(default_factory=dict)
    old_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None
    teacher_logprobs: Tensor | None = None
    values: Tensor | None = None
    """Of the value head before the step."""
    entropy: Tensor | None = None
    measured: bool = False
    """Whether the gap metrics have seen it."""

    def batch(self, logprobs: Tensor, step: int, seed: int, groups: int) -> TokenBatch:
        return TokenBatch(
            logprobs=logprobs,
            mask=self.mask,
            advantages=self.advantages,
            rollout_logprobs=self.rollout_logprobs,
            cu_seqlens=self.row.cu_seqlens,
            sample_ids=self.sample_ids,
            kind_ids=self.kind_ids,
            temperature=self.temperature,
            step=step,
            run_seed=seed,
            old_logprobs=self.old_logprobs,
            ref_logprobs=self.ref_logprobs,
            entropy=self.entropy,
            values=self.values,
            teacher_logprobs=self.teacher_logprobs,
            extra=self.extra,
            group_ids=self.group_ids,
            groups=groups,
            features=self.features,
        )

    def weights(self, aggregation: str, counts: Counts, constant_length: int) -> Tensor:
        """``[T]`` weights of the token losses: aggregation times each trajectory's own weight."""
        weights = token_weights(
            aggregation,
            self.mask,
            self.row.cu_seqlens,
            trajectory_tokens=self.trajectory_tokens,
            group_tokens=self.group_tokens,
            counts=counts,
            constant_length=constant_length,
        )
        lengths = (self.row.cu_seqlens[1:] - self.row.cu_seqlens[:-1]).long()
        return weights * torch.repeat_interleave(self.weight, lengths)


def make_micro(rows: Sequence[TrainRow], device: torch.device) -> Micro:
    """Tensors of the rows of one micro-batch; an empty one keeps its rank in step with the others."""
    if not rows:
        row = empty_row(device)
        one, zeros = torch.ones(1, device=device), torch.zeros(2, device=device)
        ids = torch.zeros(1, dtype=torch.int64, device=device)
        return Micro(row, zeros, zeros, zeros, ids, ids, one, one, one, one, ids, {})
    row = pack_rows(rows, device)
    per_row = np.array([len(r.segment.token_ids) for r in rows])

    def tokens(parts: list[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.concatenate(parts).astype(np.float32)).to(device)

    def segments(values: Sequence[float], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    sampled = [
        np.zeros(n, np.float32) if r.segment.logprobs is None else r.segment.logprobs
        for r, n in zip(rows, per_row, strict=True)
    ]
    mask = tokens([r.segment.loss_mask for r in rows])
    return Micro(
        row=row,
        mask=mask,
        advantages=torch.from_numpy(np.repeat(np.array([r.advantage for r in rows], np.float32), per_row)).to(device)
        * mask,
        rollout_logprobs=tokens(sampled),
        sample_ids=segments([r.sample_id for r in rows], torch.int64),
        kind_ids=segments([r.kind_id for r in rows], torch.int64),
        temperature=segments([r.segment.temperature for r in rows]),
        weight=segments([r.weight for r in rows]),
        trajectory_tokens=segments([r.trajectory_tokens for r in rows]),
        group_tokens=segments([r.group_tokens for r in rows]),
        group_ids=segments([r.group_id for r in rows], torch.int64),
        features={name: segments([r.features[name] for r in rows]) for name in rows[0].features},
    )


class Sums:
    """Metric sums on this rank, made one over all ranks at the end."""

    def __init__(self) -> None:
        self.sums: dict[str, list[Tensor]] = {}
        self.maxima: dict[str, Tensor] = {}
        self.lowest: set[str] = set()
        """Names in ``maxima`` that are kept negated, since their smallest value is wanted."""

    def add(self, name: str, total: Tensor, count: Tensor) -> None:
        entry = self.sums.setdefault(name, [torch.zeros((), dtype=torch.float64)] * 2)
        self.sums[name] = [entry[0] + total.detach().double().cpu(), entry[1] + count.detach().double().cpu()]

    def peak(self, name: str, value: Tensor) -> None:
        value = value.detach().double().cpu()
        self.maxima[name] = torch.maximum(self.maxima[name], value) if name in self.maxima else value

    def reduced(self) -> tuple[dict[str, tuple[float, float]], dict[str, float]]:
        local = (
            {k: (float(a), float(b)) for k, (a, b) in self.sums.items()},
            {k: float(v) for k, v in self.maxima.items()},
        )
        gathered: list[tuple[dict[str, tuple[float, float]], dict[str, float]]] = [local]
        if dist.is_initialized() and dist.get_world_size() > 1:
            gathered = [local] * dist.get_world_size()
            dist.all_gather_object(gathered, local)
        sums: dict[str, tuple[float, float]] = {}
        maxima: dict[str, float] = {}
        for rank_sums, rank_maxima in gathered:
            for name, (total, count) in rank_sums.items():
                before = sums.get(name, (0.0, 0.0))
                sums[name] = (before[0] + total, before[1] + count)
            for name, value in rank_maxima.items():
                maxima[name] = max(value, maxima.get(name, value))
        return sums, {name: -value if name in self.lowest else value for name, value in maxima.items()}


def reduce_sum(value: Tensor) -> Tensor:
    """Sum over ranks."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        value = value.clone()
        dist.all_reduce(value)
    return value


Forward = Callable[[Micro, Objective], tuple[Tensor, Tensor, dict[str, Tensor]]]
"""``[N]`` log-probs, entropies, and by name vocabulary terms and ``values``; all but entropies with gradient."""
Score = Callable[[Micro], tuple[Tensor, Tensor, dict[str, Tensor]]]
"""The same without gradient and without vocabulary terms."""
Frozen = Callable[[Micro], Tensor]
"""``[N]`` log-probs of another model."""


def run_step(
    batch: StepBatch,
    objective: Objective,
    *,
    forward: Forward,
    score: Score,
    reference: Frozen | None,
    teacher: Frozen | None,
    backward: Callable[[Tensor], None],
    update: Callable[[], dict[str, float]],
    world_size: int,
    constant_length: int,
    seed: int,
    device: torch.device,
) -> StepResult:
    """Trains on one step's batch.

    With one update the ratio's denominator is the policy's own log-prob, detached: exactly on policy,
    and no forward is spent on it. With several updates it is frozen in a pre-pass.

    Args:
        forward: with gradient.
        score: the same without.
        reference, teacher: log-probs of these models; needed when the objective names the signal.
        backward: takes a loss that is this rank's share, times the number of ranks.
        update: the optimizer step; returns its scalars.
    """
    began = time.monotonic()
    sums = Sums()
    # Epochs repeat the same plans: their micro-batches and signals are made once.
    made = {
        id(plan): [make_micro([batch.rows[i] for i in m], device) for m in plan.microbatches] for plan in batch.updates
    }
    plans = [made[id(plan)] for plan in batch.updates]
    several = len(batch.updates) > 1
    distinct = [micro for members in made.values() for micro in members]
    for micro in distinct:
        _signals(micro, objective, several, score, reference, teacher)
    _token_advantages(distinct, objective, batch, seed)
    scalars: dict[str, float] = {"time/prepass": time.monotonic() - began}
    history: list[dict[str, float]] = []
    for plan, members in zip(batch.updates, plans, strict=True):
        if not members:
            continue
        for micro in members:
            _accumulate(micro, plan, batch, objective, sums, forward, backward, world_size, constant_length, seed)
        history.append(update())
    for name in {name for entry in history for name in entry}:
        values = [entry[name] for entry in history if name in entry]
        scalars[name] = values[-1] if name == "train/lr" else sum(values) / len(values)
    scalars["train/updates"] = float(len(history))
    if history and "train/skipped_updates" in scalars:
        scalars["train/skipped_updates"] *= len(history)
    first_rank = not dist.is_initialized() or dist.get_rank() == 0
    sums.add("train/loss", torch.zeros(()), torch.tensor(len(history) * first_rank))  # mean over updates
    totals, maxima = sums.reduced()
    scalars["time/optimise"] = time.monotonic() - began - scalars["time/prepass"]
    return StepResult(totals, maxima, scalars)


def _token_advantages(micros: Sequence[Micro], objective: Objective, batch: StepBatch, seed: int) -> None:
    """All rows of the step at once. A rank without rows takes part with an empty one: reducing is collective."""
    members = [micro for micro in micros if len(micro.row.chosen)] or list(micros[:1])
    if not members:
        return
    parts = [
        micro.batch(
            micro.rollout_logprobs if micro.old_logprobs is None else micro.old_logprobs, batch.step, seed, batch.groups
        )
        for micro in members
    ]
    whole = join(parts)
    values = split(objective.token_advantages(whole, reduce_sum), parts)
    extra = {name: split(tensor, parts) for name, tensor in whole.extra.items()}
    for i, micro in enumerate(members):
        micro.advantages = values[i].detach()
        micro.extra = {name: pieces[i] for name, pieces in extra.items()}


def _signals(
    micro: Micro,
    objective: Objective,
    several: bool,
    score: Score,
    reference: Frozen | None,
    teacher: Frozen | None,
) -> None:
    if several or objective.signals & {"old_logprobs", "entropy", "values"}:
        logprobs, entropy, heads = score(micro)
        micro.old_logprobs = micro.row.scatter(logprobs)
        micro.entropy = micro.row.scatter(entropy)
        if "values" in objective.signals:
            micro.values = micro.row.scatter(heads["values"])
    if "ref_logprobs" in objective.signals:
        assert reference is not None, "the objective needs a reference model and none was loaded"
        micro.ref_logprobs = micro.row.scatter(reference(micro))
    if "teacher_logprobs" in objective.signals:
        assert teacher is not None, "the objective needs a teacher and none was loaded"
        micro.teacher_logprobs = micro.row.scatter(teacher(micro))


def _accumulate(
    micro: Micro,
    plan: UpdatePlan,
    batch: StepBatch,
    objective: Objective,
    sums: Sums,
    forward: Forward,
    backward: Callable[[Tensor], None],
    world_size: int,
    constant_length: int,
    seed: int,
) -> None:
    chosen, entropy, vocab = forward(micro, objective)
    if not len(micro.row.chosen):
        backward(sum((values.sum() for values in vocab.values()), chosen.sum()) * 0.0)
        return
    logprobs = micro.row.scatter(chosen)
    if micro.old_logprobs is None:
        micro.old_logprobs = logprobs.detach()
    micro.entropy = micro.row.scatter(entropy)
    tokens = micro.batch(logprobs, batch.step, seed, batch.groups)
    tokens.vocab = {name: micro.row.scatter(values) for name, values in vocab.items()}
    tokens.values = tokens.vocab.get("values")
    out = objective.token_loss(tokens)
    weights = micro.weights(objective.aggregation, plan.counts, constant_length)
    # `where` keeps what lies outside the mask (it may be inf or nan) out of value and gradient.
    loss = (torch.where(micro.mask > 0, out.loss, torch.zeros_like(out.loss)) * weights).sum()
    backward(loss * world_size)
    _measure(micro, entropy, sums)
    sums.add("train/loss", loss, torch.zeros(()))
    for name, (total, count) in out.metrics.items():
        sums.add(name, total, count)
    for name, value in out.maxima.items():
        sums.peak(name, value)
    for name, value in out.minima.items():
        sums.lowest.add(name)
        sums.peak(name, -value)


def _measure(micro: Micro, entropy: Tensor, sums: Sums) -> None:
    """Entropy, and the gap between rollout and trainer, at the weights that sampled the tokens."""
    if micro.measured:
        return
    micro.measured = True
    count = micro.mask.sum()
    sums.add("policy/entropy", entropy.sum(), count)
    assert micro.old_logprobs is not None
    gap = ((micro.old_logprobs - micro.rollout_logprobs) * micro.mask).abs()
    sums.add("gap/mean", gap.sum(), count)
    sums.add("gap/share_above", (gap > GAP_THRESHOLD).float().sum(), count)
    sums.peak("gap/max", gap.max())
