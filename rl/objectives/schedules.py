"""Schedules over the global step, for guides."""

from __future__ import annotations

import functools
import logging
import math

log = logging.getLogger(__name__)

CYCLES = 8
DECAY = 0.9


def warm_restarts(step: int, *, start: float, end: float, steps: int) -> float:
    """Cosine with warm restarts: SAGE's schedule of its guides' strengths.

    Eight cycles; each falls from an upper value to ``end``, and the upper value shrinks by 0.9 with
    each cycle, never below ``end``.

    Args:
        step: from 0.
        steps: length of the run. Under 16 steps there are fewer cycles, so that each still anneals.
    """
    cycles = _cycles(max(1, steps))
    length = max(1, steps // cycles)
    upper = max(end, start * DECAY ** (step // length))
    return end + (upper - end) * (1 + math.cos(math.pi * (step % length) / length)) / 2


@functools.cache
def _cycles(steps: int) -> int:
    if steps >= 2 * CYCLES:
        return CYCLES
    fewer = max(1, steps // 2)
    log.warning("%d steps are too short for %d cycles of the guide's schedule; it has %d", steps, CYCLES, fewer)
    return fewer
