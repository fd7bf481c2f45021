"""The optimizer, its parameter groups, and the learning rate over updates."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from rl.config.schema import TrainerConfig


def make_optimizer(model: nn.Module, config: TrainerConfig) -> torch.optim.Optimizer:
    """AdamW over what is trained; vectors (norms, biases) have no weight decay."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=config.lr, betas=config.betas, eps=config.eps)


def learning_rate(config: TrainerConfig, update: int, total: int | None) -> float:
    """Rate of the ``update``-th optimizer step, counted from 0.

    Linear warm-up over ``warmup_updates``; then ``constant``, or ``linear`` or ``cosine`` from ``lr``
    towards ``lr * min_lr_ratio``, which the update after the last would have.

    Raises:
        ValueError: a schedule that needs the total has none.
    """
    if update < config.warmup_updates:
        return config.lr * (update + 1) / config.warmup_updates
    if config.schedule == "constant":
        return config.lr
    if total is None:
        raise ValueError(f"trainer.schedule={config.schedule} needs an end: set stop.steps or stop.epochs")
    span = max(1, total - config.warmup_updates)
    done = min(1.0, (update - config.warmup_updates) / span)
    shape = 1 - done if config.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return config.lr * (config.min_lr_ratio + (1 - config.min_lr_ratio) * shape)
