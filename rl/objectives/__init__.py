"""Objectives: how scored bundles become a loss. Pure maths, assembled by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rl.config.plugins import load_object
from rl.config.schema import AlgorithmConfig
from rl.objectives.base import Objective
from rl.objectives.composed import ComposedObjective

OBJECTIVES: Mapping[str, Any] = {"composed": ComposedObjective}


def build(algorithm: AlgorithmConfig, *, max_response_tokens: int) -> Objective:
    """The objective that a config names; the controller and every rank build their own.

    Args:
        max_response_tokens: what ``algorithm.constant_length`` is when it is not given.
    """
    if algorithm.constant_length is None:
        algorithm = dataclasses.replace(algorithm, constant_length=max_response_tokens)
    factory = load_object(algorithm.objective, OBJECTIVES)
    return factory(algorithm, **algorithm.options) if algorithm.options else factory(algorithm)
