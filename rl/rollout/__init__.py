"""Rollouts: engines that sample, and the episodes that use them."""

from __future__ import annotations

from rl.config.schema import Config
from rl.rollout.engine import Engine


def create_engine(config: Config) -> Engine:
    """The engine that ``rollout.engine`` names."""
    if config.rollout.engine == "hf":
        from rl.rollout.hf_engine import HfEngine

        return HfEngine(config)
    from rl.rollout.vllm_engine import VllmEngine

    return VllmEngine(config)
