"""Planners by name."""

from __future__ import annotations

from rl.planners.dynamic_sampling import DynamicSamplingPlanner
from rl.planners.fixed import FixedPlanner

PLANNERS = {"fixed": FixedPlanner, "dynamic_sampling": DynamicSamplingPlanner}
