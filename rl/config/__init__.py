"""Settings: the schema, and strict loading from recipes, groups and the command line."""

from __future__ import annotations

from rl.config.errors import ConfigError
from rl.config.loading import Resolved, find_recipe, load, load_resolved
from rl.config.schema import Config

__all__ = ["Config", "ConfigError", "Resolved", "find_recipe", "load", "load_resolved"]
