"""Environments by name. User environments are named `package.module:Class` or `path/file.py:Class`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from envs.adapters.gymnasium import GymnasiumText
from envs.adapters.openenv import OpenEnv
from envs.adapters.trl import TrlEnvironment
from envs.base import Environment
from envs.repo_navigator.environment import RepoNavigator
from envs.single_turn import SingleTurn

ENVIRONMENTS: Mapping[str, Callable[..., Environment]] = {
    "single_turn": SingleTurn,
    "repo_navigator": RepoNavigator,
    "gymnasium": GymnasiumText,
    "trl": TrlEnvironment,
    "openenv": OpenEnv,
}
