"""Layers of settings to one checked `Config`.

Order, later wins: the schema's defaults; each group of the recipe's ``defaults`` list; the recipe;
groups of the command line (``algorithm=sage``), each in the place of its whole section; ``key=value`` overrides.
"""

from __future__ import annotations

import dataclasses
import os
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rl.config import strict
from rl.config.checks import check_config
from rl.config.errors import ConfigError, nearest
from rl.config.hardware import dtype_for
from rl.config.schema import Config

SHIPPED = Path(__file__).resolve().parents[2]
"""Folder that holds the `recipes` and `configs` packages."""
_GROUP_NAME = re.compile(r"(?!null$|~$)[A-Za-z_][\w./-]*")


@dataclass(frozen=True, slots=True)
class Resolved:
    """A config with where each of its values came from."""

    config: Config
    origins: dict[str, str]
    """Dotted key -> file, group or ``command line``; keys that are not in here have their default."""
    recipe_path: Path | None

    def to_yaml(self) -> str:
        """The whole config as YAML; loading it gives the same config."""
        return yaml.safe_dump(_plain(dataclasses.asdict(self.config)), sort_keys=False, allow_unicode=True)


def load(recipe: str | Path | None, overrides: Sequence[str] = (), base: Mapping[str, Any] | None = None) -> Resolved:
    """Loads a recipe.

    Args:
        recipe: path, or name of a shipped one such as ``grpo/arithmetic_cpu``; ``None`` starts from ``base``.
        overrides: ``key=value`` strings; values are YAML.
        base: settings under the recipe, for Python callers and tests.

    Raises:
        ConfigError: names the key, its origin and what to do.
    """
    layers: list[tuple[str, dict[str, Any]]] = []
    if base:
        layers.append(("base", dict(base)))
    path = None
    if recipe is not None:
        path = find_recipe(recipe)
        content = read_yaml(path)
        for name in _defaults(content, path):
            group = find_group(name)
            layers.append((f"group {name}", read_yaml(group)))
        layers.append((str(path), content))
    return _resolve(_with_overrides(layers, overrides), path)


def load_resolved(path: Path, overrides: Sequence[str] = ()) -> Resolved:
    """A run directory's saved config, with overrides on top."""
    return _resolve(_with_overrides([(str(path), read_yaml(path))], overrides), path)


def _with_overrides(
    layers: list[tuple[str, dict[str, Any]]], overrides: Sequence[str]
) -> list[tuple[str, dict[str, Any]]]:
    """The command line on top. ``algorithm=sage`` puts a group in the place of what was said of its section."""
    sections = {name for name, kind in typing.get_type_hints(Config).items() if dataclasses.is_dataclass(kind)}
    rest = []
    for text in overrides:
        section, _, name = (part.strip() for part in text.partition("="))
        if section in sections and _GROUP_NAME.fullmatch(name):
            content = read_yaml(find_group(f"{section}/{name}"))
            layers = [(where, {k: v for k, v in layer.items() if k != section}) for where, layer in layers]
            layers.append((f"group {section}/{name}", content))
        else:
            rest.append(text)
    return [*layers, ("command line", parse_overrides(rest))]


def find_recipe(name: str | Path) -> Path:
    """The file of a recipe: a path as given, else a shipped recipe of that name.

    Raises:
        ConfigError: no such file; lists near names.
    """
    given = Path(name).expanduser()
    for candidate in (given, given.with_name(given.name + ".yaml")):
        if candidate.is_file():
            return candidate
    shipped = SHIPPED / "recipes"
    text = str(name).removeprefix("recipes/").removesuffix(".yaml")
    found = shipped / f"{text}.yaml"
    if found.is_file():
        return found
    names = [p.relative_to(shipped).with_suffix("").as_posix() for p in sorted(shipped.rglob("*.yaml"))]
    raise ConfigError(f"no recipe {str(name)!r}{nearest(text, names)} Shipped recipes: {', '.join(names)}")


def find_group(name: str) -> Path:
    """The file of a group such as ``algorithm/grpo``: the user's ``configs/`` first, then the shipped one."""
    folders = [Path("configs"), SHIPPED / "configs"]
    for folder in folders:
        if (folder / f"{name}.yaml").is_file():
            return folder / f"{name}.yaml"
    shipped = folders[-1]
    names = [p.relative_to(shipped).with_suffix("").as_posix() for p in sorted(shipped.rglob("*.yaml"))]
    raise ConfigError(f"defaults: no group {name!r}{nearest(name, names)} Shipped groups: {', '.join(names)}")


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file as plain containers. Duplicate keys and other encodings than UTF-8 are errors."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8") from error
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    try:
        content = OmegaConf.to_container(OmegaConf.create(text), resolve=False) if text.strip() else {}
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must be a mapping of settings, but holds {type(content).__name__}")
    return {str(key): value for key, value in content.items()}


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """``a.b=1`` strings as nested settings; values are YAML, so ``1e-6`` is a number."""
    nested: dict[str, Any] = {}
    for text in overrides:
        key, sign, value = text.partition("=")
        key = key.strip().lstrip("+")
        if not sign or not key or text.startswith("-"):
            hint = text.lstrip("-").replace(" ", "=")
            hint = hint if "=" in hint else f"{hint}=..."
            raise ConfigError(f"{text!r} is not an override; write key=value without dashes, for example `{hint}`")
        try:
            parsed = OmegaConf.to_container(OmegaConf.create(f"value: {value}" if value.strip() else "value: ''"))
        except (yaml.YAMLError, OmegaConfBaseException) as error:
            raise ConfigError(f"{text!r}: the value is not valid YAML ({error}); quote it") from error
        target = nested
        *sections, last = key.split(".")
        for section in sections:
            target = target.setdefault(section, {})
            if not isinstance(target, dict):
                raise ConfigError(f"{text!r}: {section} has been set to a plain value by another override")
        target[last] = parsed["value"]  # type: ignore[index,call-overload]
    return nested


def _resolve(layers: list[tuple[str, dict[str, Any]]], path: Path | None) -> Resolved:
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for where, layer in layers:
        _refuse_interpolation(layer, where)
        strict.check_layer(layer, Config, where)
        _merge(merged, layer, where, origins, "")

    def origin_of(key: str) -> str:
        while key:
            if key in origins:
                return origins[key]
            key = key.rpartition(".")[0]
        return "default"

    config = strict.build(Config, merged, origin_of)
    for part, key in ((config.rollout, "rollout.dtype"), (config.trainer, "trainer.dtype")):
        if part.dtype == "auto":  # once for the whole run: every process and a resumed run must agree
            part.dtype, origins[key] = dtype_for(config.device)
    check_config(config, origin_of)
    return Resolved(config, origins, path)


def _merge(into: dict[str, Any], layer: Mapping[str, Any], where: str, origins: dict[str, str], prefix: str) -> None:
    _drop_options(into, layer, origins, prefix)
    for key, value in layer.items():
        path, present = f"{prefix}{key}", into.get(key)
        if isinstance(value, Mapping) and isinstance(present, list) and all(str(k).isdigit() for k in value):
            present = into[key] = {str(i): item for i, item in enumerate(present)}  # `sources.0.path=...`
        if isinstance(value, Mapping) and value:
            if not isinstance(present, dict):
                present = into[key] = {}
            _merge(present, value, where, origins, f"{path}.")
        else:
            for old in [k for k in origins if k.startswith(f"{path}.")]:
                del origins[old]
            into[key] = value
            origins[path] = where


def _drop_options(into: dict[str, Any], layer: Mapping[str, Any], origins: dict[str, str], prefix: str) -> None:
    """Options belong to the part that they were written for: a layer that names another part starts without them."""
    for key, value in layer.items():
        options = "options" if key == "fn" else f"{key}_options"
        if options in into and into.get(key, value) != value:
            del into[options]
            for old in [k for k in origins if f"{k}.".startswith(f"{prefix}{options}.")]:
                del origins[old]


def _defaults(content: dict[str, Any], path: Path) -> list[str]:
    names = content.pop("defaults", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{path}: defaults must be a list of group names such as `algorithm/grpo`")
    return names


def _refuse_interpolation(value: Any, where: str, key: str = "") -> None:
    """A value that is looked up elsewhere could carry a secret into saved files: name the variable instead."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _refuse_interpolation(inner, where, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            _refuse_interpolation(inner, where, f"{key}.{i}")
    elif isinstance(value, str) and "${" in value:
        raise ConfigError(
            f"{key} ({where}): `${{...}}` is not expanded. Secrets are named by their environment variable "
            "(`tracking.wandb_key_env`); for other values use your shell: `key=$VALUE`"
        )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return os.fspath(value) if isinstance(value, Path) else value
