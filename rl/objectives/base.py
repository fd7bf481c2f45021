"""What an objective is: the typed input and output of every part of the family.

Shapes: a micro-batch is a packed row of ``T`` tokens in ``S`` segments. Entry ``t`` of every
``[T]`` tensor is about token ``t`` given the tokens before it in its segment; the first token of
a segment has mask 0. Log-probs and entropies are in nats at the sampling temperature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from torch import Tensor

from rl.types import Bundle

Signal = Literal["old_logprobs", "ref_logprobs", "entropy", "values", "teacher_logprobs"]
"""What a pre-pass can compute once a step, before the first update."""

Reduce = Callable[[Tensor], Tensor]
"""Sum of a tensor over all ranks. Collective: every rank calls it equally often, in the same order."""


@dataclass(frozen=True, slots=True)
class TrajectoryWeight:
    """The controller's verdict on one trajectory."""

    advantage: float = 0.0
    weight: float = 1.0
    """Multiplies the token losses; denominators do not see it."""
    drop: str | None = None
    """Reason to leave the trajectory out of numerator and denominator."""
    features: Mapping[str, float] = field(default_factory=dict)
    """Further numbers for the rank side, the same names for every trajectory; see `TokenBatch.features`."""


@dataclass(slots=True)
class TokenBatch:
    """Packed rows: one micro-batch in `Objective.token_loss`, all rows of the rank in `token_advantages`.

    ``None``: the objective did not ask for the signal. In ``token_loss`` ``old_logprobs`` and ``entropy``
    are always there; naming them as a signal makes them known to ``token_advantages`` too.
    """

    logprobs: Tensor
    """``[T]`` of the policy being trained; carries the gradient. In ``token_advantages`` the old ones
    where they were asked for, else those of the rollout."""
    mask: Tensor
    """``[T]`` float, 1 on trained tokens."""
    advantages: Tensor
    """``[T]``."""
    rollout_logprobs: Tensor
    """``[T]`` as the engine sampled."""
    cu_seqlens: Tensor
    """``[S + 1]`` int, segment ``s`` is ``cu_seqlens[s]:cu_seqlens[s + 1]``."""
    sample_ids: Tensor
    """``[S]`` int64, identity of the trajectory within the run: seeds stochastic parts."""
    kind_ids: Tensor
    """``[S]`` int, index into the step's list of kinds."""
    temperature: Tensor
    """``[S]``."""
    step: int
    run_seed: int
    old_logprobs: Tensor | None = None
    """``[T]`` under the weights before the step's first update, frozen."""
    ref_logprobs: Tensor | None = None
    entropy: Tensor | None = None
    """``[T]`` of the whole vocabulary under the same weights as ``logprobs``, detached."""
    values: Tensor | None = None
    """``[T]`` of the value head: what it expects before token ``t``; carries the gradient during an update."""
    teacher_logprobs: Tensor | None = None
    vocab: Mapping[str, Tensor] = field(default_factory=dict)
    """``[T]`` results of the objective's vocabulary terms, by name; carry the gradient."""
    extra: dict[str, Tensor] = field(default_factory=dict)
    """``[T]`` tensors that the objective's own ``token_advantages`` stored for the loss."""
    group_ids: Tensor | None = None
    """``[S]`` int64, index of the group within the step."""
    groups: int = 0
    """Groups of the step, over all ranks."""
    features: Mapping[str, Tensor] = field(default_factory=dict)
    """``[S]`` numbers that the verdicts of `Objective.weights` carried, by name."""


@dataclass(slots=True)
class TokenLoss:
    """Per-token terms before aggregation; the trainer masks, weights and sums them."""

    loss: Tensor
    """``[T]``; values outside the mask are ignored."""
    metrics: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Name -> (sum, count) over this micro-batch: reduced apart, so means are exact."""
    maxima: dict[str, Tensor] = field(default_factory=dict)
    """Name -> largest value in this micro-batch."""
    minima: dict[str, Tensor] = field(default_factory=dict)
    """Name -> smallest value in this micro-batch."""


@dataclass(frozen=True, slots=True)
class VocabTerm:
    """Something that needs all logits of a position: runs inside the chunked logits pass."""

    name: str
    fn: Callable[[Tensor, Tensor | None], Tensor]
    """``(logits [C, V], ref_logits [C, V] | None) -> [C]``; float32, already over temperature."""
    needs_ref: bool = False


@runtime_checkable
class Objective(Protocol):
    """How scored bundles become a loss. ``rl.objectives.composed`` assembles most of them."""

    signals: frozenset[Signal]
    needs_reward: bool
    vocab_terms: tuple[VocabTerm, ...]
    aggregation: str
    """Name of the aggregation in ``rl.objectives.aggregate``."""

    def weights(self, bundles: Sequence[Bundle]) -> dict[tuple[str, str, int], TrajectoryWeight]:
        """Controller side: a verdict for each ``(bundle_id, kind, sample_index)``."""
        ...

    def may_skip(self, weight: TrajectoryWeight) -> bool:
        """Whether a trajectory of this verdict contributes nothing to the gradient."""
        ...

    def token_advantages(self, batch: TokenBatch, reduce: Reduce) -> Tensor:
        """Rank side, once a step after the signal pre-pass: ``[T]``, detached.

        ``batch`` holds all rows of this rank's step, so that what is normalised over the batch sees
        all of it (`rl.objectives.joined` makes and splits it); tensors put into ``batch.extra`` reach
        the loss.
        """
        ...

    def token_loss(self, batch: TokenBatch) -> TokenLoss:
        """Rank side, each update: per-token loss terms."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
