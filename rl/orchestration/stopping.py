"""When a run ends: pure rules over counters and metrics."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping

from rl.config.checks import parse_metric_rule
from rl.config.schema import Config, StopConfig

MARGIN = 1.1
"""What a step or a save may take beyond the longest so far."""
COMPARISONS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}


def fired(
    stop: StopConfig, *, step: int, epoch: float, hours: float, tokens: int, metrics: Mapping[str, float]
) -> str | None:
    """The first rule that says the run is over, in words; ``None`` to go on."""
    if stop.steps is not None and step >= stop.steps:
        return f"stop.steps = {stop.steps} reached"
    if stop.epochs is not None and epoch >= stop.epochs:
        return f"stop.epochs = {stop.epochs:g} reached"
    if stop.hours is not None and hours >= stop.hours:
        return f"stop.hours = {stop.hours:g} reached"
    if stop.tokens is not None and tokens >= stop.tokens:
        return f"stop.tokens = {stop.tokens} reached"
    if stop.metric is not None:
        name, comparison, bound = parse_metric_rule(stop.metric)
        value = metrics.get(name)
        if value is not None and COMPARISONS[comparison](value, bound):
            return f"{name} = {value:.4g} {comparison} {bound:g}"
    return None


def time_is_up(by: float, *, now: float, step_s: float, save_s: float | None) -> bool:
    """Whether another step and a checkpoint after it may not be done in time.

    Args:
        by, now: seconds of one clock.
        step_s: the longest step so far, evaluation included.
        save_s: the longest save so far, copies included; when there was none, a step's time is allowed for it.
    """
    return now + MARGIN * (step_s + (step_s if save_s is None else save_s)) > by


def total_steps(stop: StopConfig, *, tasks_per_epoch: int | None, tasks_per_step: int) -> int | None:
    """Steps of the whole run where the rules fix them, else ``None``."""
    known = []
    if stop.steps is not None:
        known.append(stop.steps)
    if stop.epochs is not None and tasks_per_epoch:
        known.append(math.ceil(stop.epochs * tasks_per_epoch / tasks_per_step))
    return min(known) if known else None


def total_updates(config: Config, *, tasks_per_epoch: int | None) -> int | None:
    """Optimizer steps of the whole run where the rules fix them, for the learning rate's schedule."""
    steps = total_steps(config.stop, tasks_per_epoch=tasks_per_epoch, tasks_per_step=config.tasks_per_step)
    return None if steps is None else steps * config.updates_per_step * config.epochs_per_step
