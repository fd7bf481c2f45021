"""Checking plain values against the schema's types, and building the dataclasses."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

from rl.config.errors import ConfigError, nearest
from rl.config.foreign import translation
from rl.config.schema import Config


def fields_of(cls: type) -> dict[str, Any]:
    """Field name -> resolved type."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def check_layer(layer: Mapping[str, Any], cls: type, where: str, prefix: str = "") -> None:
    """Raises ConfigError for the first key that the schema does not have."""
    types_by_name = fields_of(cls)
    for key, value in layer.items():
        path = f"{prefix}{key}"
        if key not in types_by_name:
            raise ConfigError(_unknown(path, str(key), types_by_name, where))
        inner = types_by_name[key]
        if dataclasses.is_dataclass(inner) and isinstance(value, Mapping):
            check_layer(value, typing.cast(type, inner), where, f"{path}.")


def build(cls: type, values: Mapping[str, Any], origin_of: Any, prefix: str = "") -> Any:
    """An instance of ``cls``; values that are not given take their defaults.

    Args:
        origin_of: maps a dotted key to the words of an error: where its value came from.

    Raises:
        ConfigError: wrong type, value outside the choices.
    """
    arguments = {}
    for field in dataclasses.fields(cls):
        if field.name not in values:
            continue
        path = f"{prefix}{field.name}"
        annotation = fields_of(cls)[field.name]
        value = convert(values[field.name], annotation, path, origin_of)
        choices = field.metadata.get("choices") or ()
        if choices and value not in choices:
            raise ConfigError(
                f"{path} = {value!r} ({origin_of(path)}): must be one of {', '.join(choices)}"
                f"{nearest(str(value), choices)}"
            )
        arguments[field.name] = value
    return cls(**arguments)


def convert(value: Any, annotation: Any, path: str, origin_of: Any) -> Any:
    """``value`` as ``annotation``; nothing is guessed: "true" is a string and 1 is no boolean."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        members = [a for a in get_args(annotation) if a is not type(None)]
        return None if value is None else convert(value, members[0], path, origin_of)
    if annotation is Any:
        return value
    if dataclasses.is_dataclass(annotation):
        if not isinstance(value, Mapping):
            raise ConfigError(_wrong(path, value, "a section with keys of its own", origin_of))
        check_layer(value, typing.cast(type, annotation), origin_of(path), f"{path}.")
        return build(typing.cast(type, annotation), value, origin_of, f"{path}.")
    if origin is list:
        return _sequence(value, get_args(annotation)[0], path, origin_of)
    if origin is tuple:
        items = _sequence(value, get_args(annotation)[0], path, origin_of)
        if len(items) != len(get_args(annotation)):
            raise ConfigError(_wrong(path, value, f"a list of {len(get_args(annotation))}", origin_of))
        return tuple(items)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(_wrong(path, value, "a mapping", origin_of))
        inner = get_args(annotation)[1]
        return {str(k): convert(v, inner, f"{path}.{k}", origin_of) for k, v in value.items()}
    return _scalar(value, annotation, path, origin_of)


def leaves(cls: type, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """Every setting as (dotted key, field, type); sections are walked."""
    for field in dataclasses.fields(cls):
        annotation = fields_of(cls)[field.name]
        if dataclasses.is_dataclass(annotation):
            yield from leaves(typing.cast(type, annotation), f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", field, annotation


def _sequence(value: Any, inner: Any, path: str, origin_of: Any) -> list[Any]:
    if isinstance(value, Mapping) and value and all(str(k).isdigit() for k in value):
        value = [value[k] for k in sorted(value, key=int)]
    if not isinstance(value, (list, tuple)):
        raise ConfigError(_wrong(path, value, "a list", origin_of))
    return [convert(item, inner, f"{path}.{i}", origin_of) for i, item in enumerate(value)]


def _scalar(value: Any, annotation: Any, path: str, origin_of: Any) -> Any:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if annotation is bool and isinstance(value, bool):
        return value
    if annotation is int and number and float(value).is_integer():
        return int(value)
    if annotation is float and number:
        if value != value:
            raise ConfigError(_wrong(path, value, "a number", origin_of))
        return float(value)
    if annotation is str and isinstance(value, str):
        return value
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    hint = "; quote it to make it text" if annotation is str and value is not None else ""
    raise ConfigError(_wrong(path, value, names.get(annotation, str(annotation)), origin_of) + hint)


def _wrong(path: str, value: Any, expected: str, origin_of: Any) -> str:
    return f"{path} = {value!r} ({origin_of(path)}): must be {expected}"


def _unknown(path: str, key: str, valid: Mapping[str, Any], where: str) -> str:
    known = translation(path)
    if known is not None:
        return f"{path} ({where}) is another framework's word; here it is {known}"
    hint = nearest(key, valid)
    if not hint:  # the right word in the wrong section
        elsewhere = {full.rpartition(".")[2]: full for full, _, _ in leaves(Config)}
        close = difflib.get_close_matches(key, elsewhere, n=1, cutoff=0.6)
        hint = f"; did you mean `{elsewhere[close[0]]}`?" if close else "."
    return f"{path} ({where}) is not a setting{hint} `hone config show` lists all"
