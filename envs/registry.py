"""Environments and programs by name. A user's own is named `package.module:Class` or `path/file.py:Class`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from envs.adapters.gymnasium import GymnasiumText
from envs.adapters.openenv import OpenEnv
from envs.adapters.trl import TrlEnvironment
from envs.adapters.verifiers import VerifiersProgram
from envs.base import Environment
from envs.program import CommandProgram, Program
from envs.repo_navigator.environment import RepoNavigator
from envs.single_turn import SingleTurn

ENVIRONMENTS: Mapping[str, Callable[..., Environment | Program]] = {
    "single_turn": SingleTurn,
    "repo_navigator": RepoNavigator,
    "gymnasium": GymnasiumText,
    "trl": TrlEnvironment,
    "openenv": OpenEnv,
    "command": CommandProgram,
    "verifiers": VerifiersProgram,
}
