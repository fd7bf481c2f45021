"""Most objectives: an advantage estimator, a policy loss, a KL term and masks, put together."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from rl.config.errors import ConfigError
from rl.config.plugins import load_object
from rl.config.schema import AlgorithmConfig
from rl.objectives.advantages import ADVANTAGES, Estimator
from rl.objectives.base import Reduce, Signal, TokenBatch, TokenLoss, TrajectoryWeight, VocabTerm
from rl.objectives.kl import KL
from rl.objectives.policy_losses import POLICY_LOSSES
from rl.types import Bundle, Trajectory


class ComposedObjective:
    """An objective from named parts; the fields of ``AlgorithmConfig`` say which.

    Raises:
        ConfigError: a part is unknown or does not take its options.
    """

    needs_reward = True
    vocab_terms: tuple[VocabTerm, ...] = ()

    def __init__(self, algorithm: AlgorithmConfig) -> None:
        found = load_object(algorithm.advantage, ADVANTAGES)
        estimator = found.fn if isinstance(found, Estimator) else found
        self._estimate = _bound(estimator, algorithm.advantage_options, "algorithm.advantage_options")
        loss = load_object(algorithm.policy_loss, POLICY_LOSSES)
        self._policy_loss = _bound(loss, algorithm.policy_loss_options, "algorithm.policy_loss_options")
        self._kl_coef, self._kl = algorithm.kl_coef, KL[algorithm.kl_estimator]
        self._mask_truncated = algorithm.mask_truncated
        self.aggregation = algorithm.aggregation
        signals: set[Signal] = set()
        if self._kl_coef > 0:
            signals.add("ref_logprobs")
        self.signals: frozenset[Signal] = frozenset(signals)

    def weights(self, bundles: Sequence[Bundle]) -> dict[tuple[str, str, int], TrajectoryWeight]:
        verdicts: dict[tuple[str, str, int], TrajectoryWeight] = {}
        kept: list[list[Trajectory]] = []
        for bundle in bundles:
            for group in bundle.groups.values():
                members = []
                for t in group.trajectories:
                    reason = self._drop_reason(t)
                    if reason is None:
                        members.append(t)
                    else:
                        verdicts[_key(t)] = TrajectoryWeight(drop=reason)
                if members:
                    kept.append(members)
        rewards = [np.array([t.reward for t in members], dtype=np.float64) for members in kept]
        for members, advantages in zip(kept, self._estimate(rewards), strict=True):
            for t, advantage in zip(members, advantages, strict=True):
                verdicts[_key(t)] = TrajectoryWeight(advantage=float(advantage))
        return verdicts

    def may_skip(self, weight: TrajectoryWeight) -> bool:
        return weight.advantage == 0 and self._kl_coef == 0 and not self.signals & {"entropy", "values"}

    def token_advantages(self, batch: TokenBatch, reduce: Reduce) -> Tensor:
        return batch.advantages

    def token_loss(self, batch: TokenBatch) -> TokenLoss:
        out = self._policy_loss(batch)
        if self._kl_coef > 0:
            assert batch.ref_logprobs is not None
            kl = self._kl(batch.logprobs, batch.ref_logprobs)
            out.loss = out.loss + self._kl_coef * kl
            out.metrics["policy/ref_kl"] = ((kl * batch.mask).sum().detach(), batch.mask.sum())
        return out

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing lasts longer than a step."""

    def _drop_reason(self, trajectory: Trajectory) -> str | None:
        if not trajectory.finish.scorable:
            return trajectory.finish.value
        if trajectory.reward is None:
            return "not_scored"
        if trajectory.response_tokens == 0:
            return "empty"
        if self._mask_truncated and trajectory.finish.truncated:
            return "truncated"
        return None


def _key(trajectory: Trajectory) -> tuple[str, str, int]:
    return trajectory.bundle_id, trajectory.kind, trajectory.sample_index


def _bound(fn: Any, options: Mapping[str, Any], where: str) -> Any:
    """``fn`` with its options given by name, checked now rather than in the middle of a run."""
    parameters = inspect.signature(fn).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    for key in options:
        if key not in parameters and not takes_any:
            names = [n for n, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY]
            raise ConfigError(f"{where}.{key}: {getattr(fn, '__name__', fn)} takes only {names or 'no options'}")
    return functools.partial(fn, **options)
