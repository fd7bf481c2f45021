"""Stop rules and the schedule's horizon."""

from __future__ import annotations

import pytest

from rl.config.checks import parse_metric_rule
from rl.config.schema import Config, StopConfig
from rl.orchestration.stopping import fired, total_steps, total_updates

NOW = {"step": 10, "epoch": 1.5, "hours": 2.0, "tokens": 5000, "metrics": {"eval/accuracy": 0.7}}


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"steps": 10}, "stop.steps"),
        ({"steps": 11}, None),
        ({"epochs": 1.5}, "stop.epochs"),
        ({"epochs": 1.6}, None),
        ({"hours": 1.0}, "stop.hours"),
        ({"tokens": 5000}, "stop.tokens"),
        ({"tokens": 5001}, None),
        ({"metric": "eval/accuracy >= 0.7"}, "eval/accuracy"),
        ({"metric": "eval/accuracy > 0.7"}, None),
        ({"metric": "not/there >= 0"}, None),
        ({}, None),
    ],
)
def test_each_rule_fires_at_its_bound_and_is_named(rule: dict[str, object], says: str | None) -> None:
    reason = fired(StopConfig(**rule), **NOW)
    assert (reason is None) if says is None else (reason is not None and says in reason)


@pytest.mark.parametrize("text", ["eval/accuracy", "eval/accuracy == 1", "eval/accuracy >= high", ""])
def test_a_rule_that_cannot_be_read_says_how_to_write_it(text: str) -> None:
    with pytest.raises(ValueError, match="of the form"):
        parse_metric_rule(text)


def test_horizon_is_the_nearest_of_steps_and_epochs() -> None:
    assert total_steps(StopConfig(steps=50, epochs=2.0), tasks_per_epoch=100, tasks_per_step=8) == 25
    assert total_steps(StopConfig(epochs=1.0), tasks_per_epoch=101, tasks_per_step=10) == 11
    assert total_steps(StopConfig(hours=1.0), tasks_per_epoch=100, tasks_per_step=8) is None


def test_total_updates_counts_updates_and_epochs() -> None:
    config = Config(updates_per_step=4, epochs_per_step=2)
    config.stop.steps = 5
    assert total_updates(config, tasks_per_epoch=None) == 40
