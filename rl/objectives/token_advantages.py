"""From a trajectory's advantage to its tokens, once a step, on all rows of a rank.

A part is ``fn(batch, reduce, kl, **options) -> [T]``. ``kl`` is the penalty of each token that goes
into the reward, ``kl_coef * (log pi_old - log anchor)``, 0 outside the mask; ``None``: no such term.
``reduce`` sums over ranks. Time steps are the trained tokens of a segment; what lies between them
(tool text) is skipped. The trajectory's advantage is the reward of its segments' last trained token.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rl.objectives.base import Reduce, TokenBatch
from rl.objectives.parts import needs
from rl.objectives.segments import last_trained, log_ratio, segment_ids, segment_sum, spread

TokenAdvantage = Callable[..., Tensor]


def broadcast(batch: TokenBatch, reduce: Reduce, kl: Tensor | None, *, per_token: bool = False) -> Tensor:
    """Every token has its trajectory's advantage (GRPO and kin).

    With KL in the reward, each trajectory gets ``A + s - (mean of s in its group)``, ``s = -sum of kl``:
    the task reward is normalised first, so the group's std does not rescale the KL, and whatever is
    the same for a whole group, such as a normaliser of the anchor, cancels.

    Args:
        per_token: divide ``s`` by the trajectory's trained tokens, which bounds it for long answers.
    """
    if kl is None:
        return batch.advantages
    assert batch.group_ids is not None, "KL in the reward needs group ids"
    samples, index = torch.unique(batch.sample_ids, return_inverse=True)
    none = kl.new_zeros(len(samples), dtype=torch.float64)
    tokens = none.index_add(0, index, segment_sum(torch.ones_like(kl), batch).double())
    penalty = none.index_add(0, index, segment_sum(kl, batch).double())
    if per_token:
        penalty = penalty / tokens.clamp(min=1)
    group_of = torch.zeros_like(samples).scatter(0, index, batch.group_ids)
    zeros = none.new_zeros(max(batch.groups, 1))
    sums = [zeros.index_add(0, group_of, penalty), zeros.index_add(0, group_of, (tokens > 0).double())]
    totals = reduce(torch.stack(sums))
    mean = totals[0] / totals[1].clamp(min=1)
    shift = (mean[group_of] - penalty)[index]
    return (batch.advantages + spread(shift.to(batch.advantages.dtype), batch)) * batch.mask


@needs("values")
def gae(
    batch: TokenBatch,
    reduce: Reduce,
    kl: Tensor | None,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    whiten: bool = True,
) -> Tensor:
    """Generalised advantage estimation (arXiv 1506.02438) with the value head's values: PPO.

    Stores ``returns`` and ``old_values`` for the value loss.
    """
    assert batch.values is not None, "gae needs values"
    values = batch.values.detach()
    advantages = _recursion(batch, _token_rewards(batch, kl), values, gamma, lam)
    batch.extra["returns"] = (advantages + values) * batch.mask
    batch.extra["old_values"] = values
    return whitened(advantages, batch.mask, reduce) if whiten else advantages


def returns(batch: TokenBatch, reduce: Reduce, kl: Tensor | None, *, gamma: float = 1.0, whiten: bool = True) -> Tensor:
    """Discounted reward to go, normalised over the tokens of the global batch: REINFORCE++, arXiv 2501.03262."""
    zeros = torch.zeros_like(batch.mask)
    to_go = _recursion(batch, _token_rewards(batch, kl), zeros, gamma, 1.0)
    return whitened(to_go, batch.mask, reduce) if whiten else to_go


@needs("teacher_logprobs", "old_logprobs")
def distill(batch: TokenBatch, reduce: Reduce, kl: Tensor | None, *, coef: float = 1.0) -> Tensor:
    """-coef (log pi_old - log teacher) of each token, on top of the trajectory's advantage.

    On-policy distillation: the policy gradient of the reverse KL to the teacher at each prefix
    (arXiv 2306.13649; K. Lu et al., "On-Policy Distillation", 2025).
    """
    assert batch.teacher_logprobs is not None, "distill needs a teacher's log-probs"
    behind = log_ratio(batch.logprobs, batch.teacher_logprobs)[0]
    advantages = batch.advantages - coef * behind - (0 if kl is None else kl)
    return torch.where(batch.mask > 0, advantages, torch.zeros_like(advantages))


def whitened(values: Tensor, mask: Tensor, reduce: Reduce, eps: float = 1e-8) -> Tensor:
    """Mean 0 and std 1 over the trained tokens of all ranks; all 0 where they are equal."""
    inside = torch.where(mask > 0, values, torch.zeros_like(values)).double()
    count, total = reduce(torch.stack([mask.double().sum(), inside.sum()]))
    mean = total / count.clamp(min=1)
    apart = torch.where(mask > 0, inside - mean, torch.zeros_like(inside))
    std = (reduce((apart**2).sum()[None])[0] / count.clamp(min=1)).sqrt()
    flat = std <= 1e-9 * mean.abs() + 1e-12  # rounding of a mean of equal numbers
    return torch.where(flat, torch.zeros_like(apart), apart / (std + eps)).to(values.dtype)


def _token_rewards(batch: TokenBatch, kl: Tensor | None) -> Tensor:
    rewards = torch.zeros_like(batch.mask) if kl is None else -kl * batch.mask
    final = last_trained(batch)
    return rewards.index_add(0, final, batch.advantages[final].to(rewards.dtype))


def _recursion(batch: TokenBatch, rewards: Tensor, values: Tensor, gamma: float, lam: float) -> Tensor:
    """A_t = r_t + gamma V_{t+1} - V_t + gamma lam A_{t+1} over each segment's trained tokens, on a padded grid."""
    trained = (batch.mask > 0).nonzero().squeeze(-1)
    if not len(trained):
        return torch.zeros_like(rewards)
    ids = segment_ids(batch)[trained]
    counts = torch.bincount(ids, minlength=len(batch.cu_seqlens) - 1)
    column = torch.arange(len(trained), device=ids.device) - (counts.cumsum(0) - counts)[ids]
    width = int(counts.max())
    grid_rewards = rewards.new_zeros(len(counts), width + 1).index_put((ids, column), rewards[trained])
    grid_values = values.new_zeros(len(counts), width + 1).index_put((ids, column), values[trained])
    delta = grid_rewards[:, :-1] + gamma * grid_values[:, 1:] - grid_values[:, :-1]
    carry, columns = torch.zeros_like(delta[:, 0]), []
    for t in range(width - 1, -1, -1):
        carry = delta[:, t] + gamma * lam * carry
        columns.append(carry)
    out = torch.stack(columns[::-1], dim=1)
    return torch.zeros_like(rewards).index_put((trained,), out[ids, column].to(rewards.dtype))


TOKEN_ADVANTAGES: dict[str, TokenAdvantage] = {
    "broadcast": broadcast,
    "gae": gae,
    "returns": returns,
    "distill": distill,
}
