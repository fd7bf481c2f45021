"""Built-in rewards by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rewards.adapters import http, openrlhf, verifiers, verl
from rewards.code import code_tests
from rewards.exact import close_number, exact_match, last_number
from rewards.format import json_object, pattern, tags
from rewards.gym import reasoning_gym
from rewards.judge import Judge
from rewards.length import cosine_length, repetition
from rewards.math import math_answer
from rewards.model import RewardModel

REWARDS: Mapping[str, Callable[..., Any]] = {
    "exact_match": exact_match,
    "last_number": last_number,
    "close_number": close_number,
    "reasoning_gym": reasoning_gym,
    "math": math_answer,
    "code": code_tests,
    "tags": tags,
    "pattern": pattern,
    "json": json_object,
    "cosine_length": cosine_length,
    "repetition": repetition,
    "judge": Judge,
    "model": RewardModel,
    "verl": verl,
    "openrlhf": openrlhf,
    "verifiers": verifiers,
    "http": http,
}
