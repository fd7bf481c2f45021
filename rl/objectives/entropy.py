"""The entropy bonus, fixed or adaptive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl.objectives.base import Reduce, TokenBatch, TokenLoss
from rl.objectives.segments import masked_sum


class EntropyBonus:
    """``-coef * H`` of each token, H over the whole vocabulary.

    Adaptive (Skywork-OR1, arXiv 2505.22312, section 4): once a step the weight rises by ``step`` when
    the batch's mean entropy is below ``target`` and falls by it otherwise, never below 0; it acts only
    while the entropy is at most the target.
    """

    def __init__(self, coef: float, target: float | None, step: float) -> None:
        self.coef, self._target, self._step = coef, target, step
        self._acts = target is None

    @property
    def active(self) -> bool:
        """Whether there is a bonus at all."""
        return self.coef > 0 or self._target is not None

    def observe(self, batch: TokenBatch, reduce: Reduce) -> None:
        """Once a step, with the entropies before it: moves the adaptive weight."""
        if self._target is None:
            return
        assert batch.entropy is not None, "an adaptive entropy bonus needs entropies before the step"
        total = reduce(masked_sum(batch.entropy, batch.mask).double()[None])[0]
        count = reduce(batch.mask.double().sum()[None])[0]
        if not count:
            return
        mean = float(total / count)
        self.coef = max(0.0, self.coef + (self._step if mean < self._target else -self._step))
        self._acts = mean <= self._target

    def add(self, out: TokenLoss, batch: TokenBatch) -> None:
        weight = self.coef if self._acts else 0.0
        out.loss = out.loss - weight * batch.vocab["entropy"]
        count = batch.mask.sum()
        out.metrics["policy/entropy_coef"] = (weight * count, count)

    def state_dict(self) -> dict[str, Any]:
        return {"coef": self.coef, "acts": self._acts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.coef, self._acts = state["coef"], state["acts"]
