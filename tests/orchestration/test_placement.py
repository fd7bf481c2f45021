"""Placement arithmetic."""

from __future__ import annotations

import pytest

from rl.config.schema import Config
from rl.orchestration.placement import plan_placement, shortfall


def config(ranks: int, workers: int, parallel: int = 1, colocate: bool = True) -> Config:
    c = Config(colocate=colocate)
    c.trainer.ranks, c.rollout.workers, c.rollout.tensor_parallel = ranks, workers, parallel
    return c


def test_cpu_gives_every_actor_a_bundle_of_its_own() -> None:
    placement = plan_placement(config(2, 3), gpus=0)
    assert len(placement.bundles) == 5
    assert set(placement.trainer) | set(placement.engines) == set(range(5))


def test_colocated_engines_share_the_bundles_of_their_ranks() -> None:
    placement = plan_placement(config(8, 4, parallel=2), gpus=8)
    assert placement.engines == (0, 2, 4, 6)
    assert sum(b["GPU"] for b in placement.bundles) == 8
    assert placement.engine_gpus == 0


def test_apart_each_engine_has_whole_gpus() -> None:
    placement = plan_placement(config(4, 2, parallel=2, colocate=False), gpus=8)
    assert sum(b["GPU"] for b in placement.bundles) == 8
    assert placement.bundles[placement.engines[0]]["GPU"] == 2


@pytest.mark.parametrize(
    ("c", "gpus", "says"),
    [
        (config(2, 2, parallel=2), 8, "raise trainer.ranks"),
        (config(8, 1), 4, "needs 8 GPUs"),
        (config(4, 4, parallel=2, colocate=False), 8, "needs 12 GPUs"),
    ],
)
def test_what_does_not_fit_is_refused_with_advice(c: Config, gpus: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        plan_placement(c, gpus=gpus)


def test_a_cluster_that_is_too_small_is_known_at_once() -> None:
    bundles = [{"CPU": 2.0}, {"CPU": 1.0, "GPU": 1.0}]
    assert shortfall(bundles, {"CPU": 3.0, "GPU": 1.0}) == ""
    assert shortfall(bundles, {"CPU": 2.0}) == "CPU 3 wanted, 2 there, GPU 1 wanted, 0 there"
