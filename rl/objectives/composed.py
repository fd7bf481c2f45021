"""Most objectives: an advantage estimator, a policy loss, a KL term, masks and corrections, put together."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl.config.errors import ConfigError
from rl.config.schema import AlgorithmConfig
from rl.objectives.advantages import ADVANTAGES
from rl.objectives.base import Reduce, Signal, TokenBatch, TokenLoss, TrajectoryWeight, VocabTerm
from rl.objectives.corrections import CORRECTIONS
from rl.objectives.entropy import EntropyBonus
from rl.objectives.guides import GUIDES, log_q
from rl.objectives.kl import ENTROPY, KL, VOCAB_KL
from rl.objectives.masks import top_entropy
from rl.objectives.parts import attempt, part, sample_batch, sample_trajectories, signals_of
from rl.objectives.policy_losses import POLICY_LOSSES
from rl.objectives.segments import masked_sum
from rl.objectives.shaping import overlong_penalty
from rl.objectives.token_advantages import TOKEN_ADVANTAGES
from rl.objectives.values import value_loss
from rl.types import Bundle, Trajectory

log = logging.getLogger(__name__)


class ComposedObjective:
    """An objective from named parts; the fields of ``AlgorithmConfig`` say which.

    The loss of a token is ``policy term * entropy mask * correction + kl_coef * KL - entropy bonus +
    value_coef * value loss``. The advantage never sees the guide, unless the KL is put in the reward.

    Raises:
        ConfigError: a part is unknown, does not take its options or fails on a small batch, or two
            settings exclude each other.
    """

    def __init__(self, algorithm: AlgorithmConfig) -> None:
        a = self._a = algorithm
        _check(a)
        self._estimate = part("advantage", a.advantage, a.advantage_options, ADVANTAGES)
        self._policy_loss = part("policy_loss", a.policy_loss, a.policy_loss_options, POLICY_LOSSES)
        self._to_tokens = part("token_advantage", a.token_advantage, a.token_advantage_options, TOKEN_ADVANTAGES)
        self._guide = None if a.guide is None else part("guide", a.guide, a.guide_options, GUIDES)
        self._correct = None
        if a.correction != "none":
            self._correct = part("correction", a.correction, a.correction_options, CORRECTIONS)
        self._bonus = EntropyBonus(a.entropy_coef, a.entropy_target, a.entropy_step)
        self.aggregation = a.aggregation
        self.needs_reward = a.advantage != "none"
        self.vocab_terms: tuple[VocabTerm, ...] = tuple(
            term
            for term, wanted in (
                (VOCAB_KL.get(a.kl_estimator), a.kl_coef > 0),
                (ENTROPY, self._bonus.active),
            )
            if term is not None and wanted
        )
        self.signals = self._signals()
        self._learns_values = "values" in self.signals
        self._try_parts()

    def weights(self, bundles: Sequence[Bundle]) -> dict[tuple[str, str, int], TrajectoryWeight]:
        verdicts: dict[tuple[str, str, int], TrajectoryWeight] = {}
        kept: list[list[Trajectory]] = []
        for group in (group for bundle in bundles for group in bundle.groups.values()):
            members = []
            for t in sorted(group.trajectories, key=lambda t: t.sample_index):
                reason = self._drop_reason(t)
                if reason is None:
                    members.append(t)
                else:
                    verdicts[_key(t)] = TrajectoryWeight(drop=reason)
            if members:
                kept.append(members)
        by_name = getattr(self._estimate, "by_name", False)
        rewards: list[Any] = [self._named(m) if by_name else np.array([self._reward(t) for t in m]) for m in kept]
        for members, advantages in zip(kept, self._estimate(rewards), strict=True):
            features = getattr(self._guide, "features", None)
            tables = [{}] * len(members) if features is None else features(members)
            silent = not np.any(advantages)
            for t, advantage, table in zip(members, advantages, tables, strict=True):
                verdicts[_key(t)] = self._verdict(float(advantage), silent, table)
        return verdicts

    def may_skip(self, weight: TrajectoryWeight) -> bool:
        a = self._a
        alone = a.policy_loss in POLICY_LOSSES and a.token_advantage == "broadcast" and a.top_entropy_share >= 1
        return weight.advantage == 0 and alone and a.kl_coef == 0 and not self._bonus.active

    def token_advantages(self, batch: TokenBatch, reduce: Reduce) -> Tensor:
        with torch.no_grad():
            self._bonus.observe(batch, reduce)
            if self._a.top_entropy_share < 1:
                batch.extra["policy_mask"] = top_entropy(batch, reduce, self._a.top_entropy_share)
            kl = None
            if self._a.kl_in == "reward" and self._a.kl_coef > 0:
                before = batch.logprobs if batch.old_logprobs is None else batch.old_logprobs
                kl = self._a.kl_coef * KL["k1"](before, self._anchor(batch)[0])
                kl = torch.where(batch.mask > 0, kl, torch.zeros_like(kl))
            advantages: Tensor = self._to_tokens(batch, reduce, kl)
            return advantages.detach()

    def token_loss(self, batch: TokenBatch) -> TokenLoss:
        a, mask, count = self._a, batch.mask, batch.mask.sum()
        out: TokenLoss = self._policy_loss(batch)
        if "policy_mask" in batch.extra:
            out.loss = out.loss * batch.extra["policy_mask"]
            out.metrics["policy/masked_share"] = (masked_sum(1 - batch.extra["policy_mask"], mask), count)
        if self._correct is not None:
            weights, changed = self._correct(batch)
            out.loss = out.loss * weights
            out.metrics["correction/weight_mean"] = (masked_sum(weights, mask), count)
            out.metrics["correction/changed_share"] = (masked_sum(changed.to(mask.dtype), mask), count)
        if batch.step <= a.critic_warmup_steps:
            out.loss = out.loss * 0
        if a.kl_coef > 0:
            self._add_kl(out, batch)
        if self._bonus.active:
            self._bonus.add(out, batch)
        if self._learns_values:
            critic = value_loss(batch, clip=a.value_clip)
            out.loss = out.loss + a.value_coef * critic.loss
            out.metrics |= critic.metrics
        return out

    def state_dict(self) -> dict[str, Any]:
        return {"entropy": self._bonus.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._bonus.load_state_dict(state["entropy"])

    def _add_kl(self, out: TokenLoss, batch: TokenBatch) -> None:
        mask, count = batch.mask, batch.mask.sum()
        if self._a.kl_estimator in VOCAB_KL:
            kl, q = batch.vocab[self._a.kl_estimator], None
        else:
            anchor, q = self._anchor(batch)
            kl = KL[self._a.kl_estimator](batch.logprobs, anchor)
        if self._a.kl_in == "loss":
            out.loss = out.loss + self._a.kl_coef * kl
        out.metrics["policy/ref_kl"] = (masked_sum(kl, mask), count)
        if q is not None and (mask > 0).any():
            inside = q[mask > 0]
            out.metrics["guide/log_q_mean"] = (inside.sum(), count)
            out.metrics["guide/above_one_share"] = ((inside > 0).to(mask.dtype).sum(), count)
            out.maxima["guide/log_q_max"], out.minima["guide/log_q_min"] = inside.max(), inside.min()

    def _anchor(self, batch: TokenBatch) -> tuple[Tensor, Tensor | None]:
        """Log-probs of the (shaped) reference, un-normalised, and log q."""
        assert batch.ref_logprobs is not None, "the KL term needs a reference"
        if self._guide is None:
            return batch.ref_logprobs, None
        q = log_q(self._guide, batch)
        return batch.ref_logprobs + q, q

    def _signals(self) -> frozenset[Signal]:
        a, signals = self._a, set[Signal]()
        for fn in (self._policy_loss, self._to_tokens, self._guide, self._correct):
            signals |= signals_of(fn)
        if a.kl_coef > 0 and a.kl_estimator in KL:
            signals.add("ref_logprobs")
        if a.kl_in == "reward" and a.kl_coef > 0:
            signals |= {"old_logprobs", "entropy"} if self._guide else {"old_logprobs"}
        if a.top_entropy_share < 1 or a.entropy_target is not None:
            signals.add("entropy")
        return frozenset(signals)

    def _verdict(self, advantage: float, silent: bool, features: Mapping[str, float]) -> TrajectoryWeight:
        if silent and self._a.zero_advantage == "drop_groups":
            return TrajectoryWeight(drop="zero_variance")
        if advantage == 0 and self._a.zero_advantage == "drop":
            return TrajectoryWeight(drop="zero_advantage")
        return TrajectoryWeight(advantage=advantage, features=features)

    def _drop_reason(self, trajectory: Trajectory) -> str | None:
        if not trajectory.finish.scorable:
            return trajectory.finish.value
        if trajectory.reward is None and self.needs_reward:
            return "not_scored"
        if trajectory.response_tokens == 0:
            return "empty"
        if self._a.mask_truncated and trajectory.finish.truncated:
            return "truncated"
        return None

    def _reward(self, trajectory: Trajectory) -> float:
        return (trajectory.reward or 0.0) + self._penalty(trajectory)

    def _penalty(self, trajectory: Trajectory) -> float:
        a = self._a
        if not a.overlong_buffer:
            return 0.0
        assert a.constant_length is not None, "rl.objectives.build fills in the response budget"
        return overlong_penalty(
            trajectory.response_tokens,
            limit=a.constant_length,
            buffer=a.overlong_buffer,
            factor=a.overlong_factor,
        )

    def _named(self, members: Sequence[Trajectory]) -> dict[str, np.ndarray]:
        names = sorted({name for t in members for name in t.rewards})
        scores = {n: np.array([_number(t.rewards.get(n)) for t in members], dtype=np.float64) for n in names}
        if self._a.overlong_buffer:
            scores["overlong"] = np.array([self._penalty(t) for t in members])
        return scores

    def _try_parts(self) -> None:
        a = self._a
        rewards = np.array([0.0, 1.0])
        groups: list[Any] = [{"reward": rewards}] if getattr(self._estimate, "by_name", False) else [rewards]
        made = attempt("advantage", a.advantage, lambda: self._estimate(groups))
        if [np.shape(x) for x in made] != [(2,)]:
            raise ConfigError(f"algorithm.advantage: {a.advantage} must return one array [n] for each group's [n]")
        batch = sample_batch()
        features = getattr(self._guide, "features", None)
        if features is not None:
            table = attempt("guide", str(a.guide), lambda: features(sample_trajectories()))
            batch.features = {name: torch.tensor([row[name] for row in table]) for name in table[0]}
        if self._guide is not None:
            attempt("guide", str(a.guide), lambda: log_q(self._guide, batch))  # type: ignore[arg-type]
        if self._correct is not None:
            attempt("correction", a.correction, lambda: self._correct(batch))  # type: ignore[misc]
        spread = attempt("token_advantage", a.token_advantage, lambda: self._to_tokens(batch, lambda x: x, None))
        batch = dataclasses.replace(batch, advantages=spread.detach())
        out = attempt("policy_loss", a.policy_loss, lambda: self._policy_loss(batch))
        if not isinstance(out, TokenLoss) or out.loss.shape != batch.mask.shape:
            raise ConfigError(
                f"algorithm.policy_loss: {a.policy_loss} must return a TokenLoss with a loss of shape [T]"
            )


def _check(a: AlgorithmConfig) -> None:
    """Raises ConfigError for settings that exclude each other."""
    if a.kl_in == "reward" and a.kl_estimator != "k1":
        raise ConfigError(f"algorithm.kl_in: reward needs algorithm.kl_estimator=k1, not {a.kl_estimator}")
    if a.kl_in == "loss" and a.kl_estimator == "k1" and a.kl_coef > 0:
        log.warning(
            "algorithm.kl_estimator: k1 in the loss has a gradient of mean zero; k2, k3 or kl_in=reward regularise"
        )
    if a.guide is not None and (a.kl_coef <= 0 or a.kl_estimator in VOCAB_KL):
        raise ConfigError("algorithm.guide reshapes the anchor of k1, k2 or k3: set algorithm.kl_coef above 0")
    if not 0 < a.top_entropy_share <= 1:
        raise ConfigError("algorithm.top_entropy_share must be above 0 and at most 1")
    if a.overlong_buffer and not 0 < a.overlong_buffer <= (a.constant_length or a.overlong_buffer):
        raise ConfigError("algorithm.overlong_buffer must be positive and at most the response budget")
    if a.critic_warmup_steps and a.token_advantage != "gae":
        raise ConfigError("algorithm.critic_warmup_steps needs a value head: algorithm.token_advantage=gae")


def _key(trajectory: Trajectory) -> tuple[str, str, int]:
    return trajectory.bundle_id, trajectory.kind, trajectory.sample_index


def _number(score: float | None) -> float:
    return float("nan") if score is None else score
