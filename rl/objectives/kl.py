"""Estimators of KL(policy || anchor) in nats: from log-probs of sampled tokens, or over the whole vocabulary.

With ``d = log_policy - log_anchor`` (J. Schulman, "Approximating KL divergence", 2020; what each
gradient optimises: arXiv 2510.01555, 2512.21852):

* ``k1``: d. Unbiased, can be negative. As a loss its gradient is that of the log-likelihood and
  has mean zero on policy: it belongs in the reward, where it gives the reverse KL's gradient.
* ``k2``: d^2 / 2. As a loss its gradient is that of the reverse KL in expectation on policy.
* ``k3``: exp(-d) - 1 + d. Never negative, low variance. As a loss its gradient is that of the
  forward KL(anchor || policy) in expectation on policy, times the anchor's mass.
* ``full_reverse``, ``full_forward``: exact at each sampled prefix, from all logits.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rl.objectives.base import VocabTerm
from rl.objectives.segments import log_ratio


def k1(logprobs: Tensor, anchor: Tensor) -> Tensor:
    """log(policy / anchor): the unbiased value of KL(policy || anchor); as a loss its gradient is 0 on average."""
    return log_ratio(logprobs, anchor)[0]


def k2(logprobs: Tensor, anchor: Tensor) -> Tensor:
    """Half the squared log-ratio: as a loss its gradient is that of KL(policy || anchor)."""
    return 0.5 * log_ratio(logprobs, anchor)[0] ** 2


def k3(logprobs: Tensor, anchor: Tensor) -> Tensor:
    """exp(d) - 1 - d with d = log(anchor / policy): unbiased, never negative; gradient of KL(anchor || policy)."""
    difference = log_ratio(anchor, logprobs)[0]
    return torch.exp(difference) - 1 - difference


def full_reverse(logits: Tensor, ref_logits: Tensor | None) -> Tensor:
    """sum_a policy (log policy - log reference) of ``[C, V]`` logits: ``[C]``."""
    assert ref_logits is not None
    policy, reference = torch.log_softmax(logits, -1), torch.log_softmax(ref_logits, -1)
    return (policy.exp() * (policy - reference)).sum(-1)


def full_forward(logits: Tensor, ref_logits: Tensor | None) -> Tensor:
    """sum_a reference (log reference - log policy) of ``[C, V]`` logits: ``[C]``."""
    assert ref_logits is not None
    policy, reference = torch.log_softmax(logits, -1), torch.log_softmax(ref_logits, -1)
    return (reference.exp() * (reference - policy)).sum(-1)


def entropy(logits: Tensor, ref_logits: Tensor | None) -> Tensor:
    """Entropy of ``[C, V]`` logits with its gradient: ``[C]``, for the entropy bonus."""
    policy = torch.log_softmax(logits, -1)
    return -(policy.exp() * policy).sum(-1)


KL: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
VOCAB_KL: dict[str, VocabTerm] = {
    "full_reverse": VocabTerm("full_reverse", full_reverse, needs_ref=True),
    "full_forward": VocabTerm("full_forward", full_forward, needs_ref=True),
}
ENTROPY = VocabTerm("entropy", entropy)
