"""From a reward's name in a recipe to something that can be called."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from rewards.registry import REWARDS
from rl.config.errors import ConfigError
from rl.config.plugins import load_object


def load_reward(spec: str, base_dir: Path) -> Any:
    """The function, or an instance of the class, that ``spec`` names; files are relative to ``base_dir``.

    Raises:
        ConfigError: there is none, or it cannot be called.
    """
    place = spec.rpartition(":")[0]
    if place.endswith(".py") and not Path(place).expanduser().is_absolute():
        spec = str(base_dir / spec)
    found = load_object(spec, REWARDS)
    if inspect.isclass(found):
        found = found()
    if not callable(found):
        raise ConfigError(f"reward {spec}: is not a function")
    return found
