"""Where actors go: pure arithmetic from a config to placement-group bundles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rl.config.schema import Config


@dataclass(frozen=True, slots=True)
class Placement:
    """Bundles of one placement group, and which bundle each actor takes."""

    bundles: tuple[dict[str, float], ...]
    strategy: str
    trainer: tuple[int, ...]
    """Bundle of each trainer rank."""
    engines: tuple[int, ...]
    """Bundle of each engine."""
    trainer_gpus: float
    engine_gpus: float
    """0 for engines that share the trainer ranks' GPUs: they are told which."""


def plan_placement(config: Config, *, gpus: int) -> Placement:
    """Bundles for this config on a machine or cluster with ``gpus`` GPUs (0: CPU).

    Colocated on GPUs, engine ``w`` shares the GPUs of ranks ``w * tensor_parallel`` and on; apart,
    each engine has a bundle of its own.

    Raises:
        ValueError: the GPUs do not suffice or cannot be shared evenly; says what to change.
    """
    ranks, workers, parallel = config.trainer.ranks, config.rollout.workers, config.rollout.tensor_parallel
    if gpus == 0:
        bundles = [{"CPU": 1.0} for _ in range(ranks + workers)]
        return Placement(tuple(bundles), "PACK", tuple(range(ranks)), tuple(range(ranks, ranks + workers)), 0.0, 0.0)
    if config.colocate:
        if workers * parallel > ranks:
            raise ValueError(
                f"rollout.workers x rollout.tensor_parallel = {workers * parallel} GPUs, but the trainer has "
                f"{ranks} ranks to share them with: raise trainer.ranks or set colocate=false"
            )
        needed, bundles = ranks, [{"CPU": 2.0, "GPU": 1.0} for _ in range(ranks)]
        placement = Placement(
            tuple(bundles), "PACK", tuple(range(ranks)), tuple(w * parallel for w in range(workers)), 1.0, 0.0
        )
    else:
        needed = ranks + workers * parallel
        bundles = [{"CPU": 1.0, "GPU": 1.0} for _ in range(ranks)]
        bundles += [{"CPU": 1.0, "GPU": float(parallel)} for _ in range(workers)]
        placement = Placement(
            tuple(bundles),
            "PACK",
            tuple(range(ranks)),
            tuple(range(ranks, ranks + workers)),
            1.0,
            float(parallel),
        )
    if needed > gpus:
        raise ValueError(f"the recipe needs {needed} GPUs and there are {gpus}: lower trainer.ranks or rollout.workers")
    return placement


def shortfall(bundles: Sequence[Mapping[str, float]], available: Mapping[str, float]) -> str:
    """What the bundles want beyond what a cluster has at all, in words; empty when it could fit."""
    wanted: Counter[str] = Counter()
    for bundle in bundles:
        wanted.update(bundle)  # type: ignore[arg-type]
    return ", ".join(
        f"{name} {amount:g} wanted, {available.get(name, 0):g} there"
        for name, amount in wanted.items()
        if amount > available.get(name, 0)
    )
