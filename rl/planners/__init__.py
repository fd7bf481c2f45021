"""Planners by name."""

from __future__ import annotations

from rl.planners.fixed import FixedPlanner

PLANNERS = {"fixed": FixedPlanner}
