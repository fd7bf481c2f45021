"""Rollouts: engines that sample, and the episodes that use them."""

from __future__ import annotations

from rl.config.schema import Config
from rl.rollout.engine import Engine


def create_engine(config: Config, *, index: int = 0, trained: bool = True) -> Engine:
    """The engine that ``rollout.engine`` names.

    Args:
        index: of this engine among all engines.
        trained: a trainer publishes the weights; else the engine serves those of ``model.path``.
    """
    if config.rollout.engine == "hf":
        from rl.rollout.hf_engine import HfEngine

        return HfEngine(config, index=index, trained=trained)
    from rl.rollout.vllm_engine import VllmEngine

    return VllmEngine(config, index=index, trained=trained)
