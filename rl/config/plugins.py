"""User code by name: a registry name, ``package.module:attr`` or ``path/file.py:attr``.

Files are loaded by path under a module name of their own. Nothing is put on ``sys.path``, so a
user's ``rewards/`` folder never hides ours.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from rl.config.errors import ConfigError, nearest
from rl.config.schema import Config


def load_object(spec: str, registry: Mapping[str, Any]) -> Any:
    """The object that ``spec`` names.

    Raises:
        ConfigError: nothing has that name, or the user's file fails to load; says which.
    """
    if spec in registry:
        return registry[spec]
    if ":" not in spec:
        raise ConfigError(
            f"{spec!r} is not known{nearest(spec, registry)} Known: {', '.join(sorted(registry))}. "
            "Your own code is named `path/file.py:attr` or `package.module:attr`"
        )
    place, _, attribute = spec.rpartition(":")
    module = load_file(Path(place)) if is_file_spec(spec) else _import(place, spec)
    try:
        return getattr(module, attribute)
    except AttributeError:
        names = [n for n in vars(module) if not n.startswith("_")]
        raise ConfigError(f"{spec}: {place} has no {attribute!r}{nearest(attribute, names)}") from None


def is_file_spec(spec: str) -> bool:
    """Whether a spec names a file rather than a module."""
    place = spec.rpartition(":")[0]
    return place.endswith(".py")


def load_file(path: Path) -> ModuleType:
    """Loads a Python file under a unique module name; the same file is loaded once a process.

    Raises:
        ConfigError: the file is missing, or fails while it loads.
    """
    path = path.expanduser().resolve()
    if not path.is_file():
        raise ConfigError(f"no file {path}")
    name = f"hone_user_{path.stem}_{hashlib.blake2b(str(path).encode(), digest_size=6).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look the module up while it loads
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"{path} fails to load: {type(error).__name__}: {error}") from error
    return module


def user_files(config: Config) -> list[Path]:
    """Python files of the user's own that a config names."""
    specs = [config.algorithm.objective, config.algorithm.advantage, config.algorithm.policy_loss]
    specs += [config.algorithm.token_advantage, config.algorithm.guide or ""]
    specs += [config.environment, config.planner, *(f.fn for f in config.reward.functions.values())]
    return sorted({Path(s.rpartition(":")[0]).expanduser().resolve() for s in specs if is_file_spec(s)})


def _import(place: str, spec: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{spec}: no module {error.name!r}; is its package installed? A file is named `path/file.py:attr`"
        ) from error
    except Exception as error:
        raise ConfigError(f"{spec}: {place} fails to import: {type(error).__name__}: {error}") from error
