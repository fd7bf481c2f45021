"""Per-token estimators of KL(policy || anchor) from log-probs of sampled tokens, in nats.

With ``d = log_policy - log_anchor`` (J. Schulman, "Approximating KL divergence", 2020):

* ``k1``: d. Unbiased, can be negative. As a loss its gradient is that of the log-likelihood and
  has mean zero: it belongs in the reward, not in the loss.
* ``k2``: d^2 / 2. As a loss its gradient is that of the reverse KL in expectation on policy.
* ``k3``: exp(-d) - 1 + d. Never negative, low variance. As a loss its gradient is that of the
  forward KL(anchor || policy) in expectation on policy, an approximation near the anchor.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

LOG_CLAMP = 20.0
"""Differences of log-probs are clamped here before exp: e^20 is out of any useful range, inf is not finite."""


def k1(logprobs: Tensor, anchor: Tensor) -> Tensor:
    return logprobs - anchor


def k2(logprobs: Tensor, anchor: Tensor) -> Tensor:
    return 0.5 * (logprobs - anchor) ** 2


def k3(logprobs: Tensor, anchor: Tensor) -> Tensor:
    difference = (anchor - logprobs).clamp(-LOG_CLAMP, LOG_CLAMP)
    return torch.exp(difference) - 1 - difference


KL: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
