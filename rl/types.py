"""The data that every part of Hone passes to every other part.

Nothing here computes or performs I/O, and nothing imports torch, Ray or vLLM: rewards,
environments and notebooks can use these types on their own. Arrays are numpy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Message = dict[str, Any]
"""One chat message: ``{"role": ..., "content": ...}`` and what else a template reads."""

Messages = tuple[Message, ...]
BundleId = str

SOLUTION = "solution"
"""The kind of trajectory that every method has."""


class PolicyVersion(NamedTuple):
    """Identity of the weights that sampled a token."""

    incarnation: int
    """Rises with each restart from a checkpoint."""
    number: int
    """Rises with each publish of new weights."""


class Finish(StrEnum):
    """Why an episode ended."""

    STOP = "stop"
    """The policy sampled an end-of-sequence token or a stop string."""
    LENGTH = "length"
    """The policy used up its response budget; scored."""
    MAX_TURNS = "max_turns"
    """The policy used up its turns; scored."""
    CONTEXT = "context"
    """The next turn would not fit the model's context; scored."""
    DONE = "done"
    """The environment ended the episode."""
    TIMEOUT = "timeout"
    """The episode's deadline passed; leaves its group's baseline untouched."""
    ENV_ERROR = "env_error"
    """The environment failed; leaves its group's baseline untouched."""
    ABORTED = "aborted"
    """The run cancelled the episode; leaves its group's baseline untouched."""

    @property
    def truncated(self) -> bool:
        """Whether the policy overran a limit of its own."""
        return self in (Finish.LENGTH, Finish.MAX_TURNS, Finish.CONTEXT)

    @property
    def scorable(self) -> bool:
        """Whether the episode may be rewarded and join a baseline."""
        return self not in (Finish.TIMEOUT, Finish.ENV_ERROR, Finish.ABORTED)


@dataclass(frozen=True, slots=True)
class Task:
    """One dataset row."""

    task_id: str
    """Stable over runs and machines: a hash of the row or the dataset's own id."""
    messages: Messages
    """The prompt as chat messages. Base models without a template get one user message."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """What rewards and environments read, by column name."""
    source: str = "default"
    """Name of the data source that the task came from."""
    rewards: tuple[str, ...] | None = None
    """Names of the rewards that score this task; ``None`` means all."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one trajectory is sampled. Every field reaches the engine explicitly."""

    max_tokens: int
    """Response budget of one turn, in tokens."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 is off."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    """Stop strings. The tokens that complete a stop string are kept and trained."""
    stop_token_ids: tuple[int, ...] = ()
    """Every end-of-sequence id of the model. The sampled one is kept and trained."""
    ignore_eos: bool = False
    """Sample to ``max_tokens`` whatever comes: for benchmarks."""

    @property
    def truncates_distribution(self) -> bool:
        """Whether tokens are drawn from something else than the softmax at this temperature."""
        return self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0 or self.repetition_penalty != 1.0


@dataclass(frozen=True, slots=True)
class Request:
    """A planner's order: sample one task several times."""

    request_id: str
    task: Task
    kind: str
    draw: int
    """How often the task had been drawn before in this run."""
    bundle_id: BundleId
    samples: int
    sampling: tuple[SamplingParams, ...]
    """One for all samples, or one a sample."""
    first_sample: int = 0
    """Index of the first sample: a later request may extend the same group."""
    messages: tuple[Messages, ...] | None = None
    """Prompt per sample where it differs from the task's (hints, meta prompts)."""
    model: str = "policy"
    """``policy``, ``initial`` or the name of an auxiliary model."""
    purpose: Literal["train", "probe", "eval"] = "train"

    def sampling_of(self, offset: int) -> SamplingParams:
        """Sampling parameters of the ``offset``-th sample of this request."""
        return self.sampling[offset if len(self.sampling) > 1 else 0]


class VersionSpan(NamedTuple):
    """Tokens ``start <= t < end`` of a segment were sampled by ``version``."""

    version: PolicyVersion
    start: int
    end: int


class TurnSpan(NamedTuple):
    """Tokens ``start <= t < end`` of a segment were sampled in turn ``turn``."""

    turn: int
    start: int
    end: int


@dataclass(slots=True)
class Segment:
    """One contiguous token row of an episode."""

    token_ids: NDArray[np.int32]
    """``[T]``, prompt and observations included."""
    loss_mask: NDArray[np.bool_]
    """``[T]``, true exactly on tokens that are trained; for the policy's own rows, the sampled ones."""
    logprobs: NDArray[np.float32] | None
    """``[T]``, in nats at the sampling temperature; 0 where not sampled. ``None``: not sampled by the policy."""
    version_spans: tuple[VersionSpan, ...] = ()
    turn_spans: tuple[TurnSpan, ...] = ()
    temperature: float = 1.0

    def __post_init__(self) -> None:
        length = len(self.token_ids)
        if len(self.loss_mask) != length:
            raise ValueError(f"loss_mask has {len(self.loss_mask)} entries for {length} tokens")
        if self.logprobs is not None and len(self.logprobs) != length:
            raise ValueError(f"logprobs has {len(self.logprobs)} entries for {length} tokens")
        if length and self.loss_mask[0]:
            raise ValueError("the first token of a segment has no prefix and cannot be trained")

    @property
    def trained_tokens(self) -> int:
        return int(self.loss_mask.sum())


@dataclass(slots=True)
class Trajectory:
    """One sampled episode."""

    request_id: str
    bundle_id: BundleId
    kind: str
    sample_index: int
    seed: int
    segments: list[Segment]
    messages: Messages
    """The whole conversation as text, the prompt included."""
    finish: Finish
    prompt_messages: int = 0
    """How many of ``messages`` are prompt."""
    rewards: dict[str, float | None] = field(default_factory=dict)
    """Each named reward before weighting; ``None`` is not scored."""
    reward: float | None = None
    """The weighted total; ``None`` when no reward scored the trajectory."""
    turn_rewards: list[float] = field(default_factory=list)
    outcome: float | None = None
    """Correctness apart from shaping."""
    metrics: dict[str, float] = field(default_factory=dict)
    error: str | None = None
    """What went wrong, when ``finish`` is ``env_error`` or a reward failed."""

    @property
    def response_tokens(self) -> int:
        """Number of tokens that the policy sampled."""
        return sum(segment.trained_tokens for segment in self.segments)

    @property
    def completion(self) -> Messages:
        """What the policy and the environment said after the prompt."""
        return self.messages[self.prompt_messages :]

    @property
    def completion_text(self) -> str:
        """Text of the policy's own turns."""
        return "\n".join(str(m.get("content") or "") for m in self.completion if m["role"] == "assistant")


@dataclass(slots=True)
class Group:
    """All trajectories sharing a bundle and a kind: the unit of group-relative advantages."""

    bundle_id: BundleId
    kind: str
    task: Task
    requested: int
    trajectories: list[Trajectory] = field(default_factory=list)
    dropped: int = 0
    """Samples that were dropped and counted; the rest must be present."""

    @property
    def complete(self) -> bool:
        return len(self.trajectories) + self.dropped >= self.requested


@dataclass(slots=True)
class Bundle:
    """Everything sampled for one draw of one task."""

    bundle_id: BundleId
    task: Task
    draw: int
    groups: dict[str, Group] = field(default_factory=dict)

    @property
    def trajectories(self) -> list[Trajectory]:
        return [t for group in self.groups.values() for t in group.trajectories]


@dataclass(frozen=True, slots=True)
class Accept:
    """The bundle joins the step's batch."""


@dataclass(frozen=True, slots=True)
class Drop:
    """The bundle is thrown away; counted by reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class ExtraUpdate:
    """Rows that the policy did not sample in this step, trained with a named loss."""

    name: str
    segments: tuple[Segment, ...]
    lr: float | None = None


@dataclass(frozen=True, slots=True)
class TrainDirective:
    """What the trainer does with a finished step."""

    reset: bool = False
    """Start again from the initial weights."""
    epochs: int | None = None
    """``None``: the config's ``epochs_per_step``."""
    updates: int | None = None
    """``None``: the config's ``updates_per_step``."""
    schedule: Literal["continue", "restart"] = "continue"
    publish: bool = True
    extra: tuple[ExtraUpdate, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """A planner's answer to an event."""

    requests: tuple[Request, ...] = ()
    close: tuple[tuple[BundleId, Accept | Drop], ...] = ()
    step_complete: bool = False
    train: TrainDirective = TrainDirective()


def bundle_id(task_id: str, draw: int) -> BundleId:
    """Identity of the ``draw``-th sampling of a task."""
    return f"{task_id}#{draw}"


def sample_seed(run_seed: int, task_id: str, draw: int, kind: str, sample_index: int, turn: int = 0) -> int:
    """Seed of one turn of one sample, in ``[0, 2**63)``.

    Two samples differ, two draws differ, a rerun repeats; nothing depends on workers or order.
    """
    text = "\x1f".join(map(str, (run_seed, task_id, draw, kind, sample_index, turn)))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
