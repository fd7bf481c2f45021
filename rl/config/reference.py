"""The reference of all settings, made from the schema."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

from rl.config import schema

INTRODUCTION = """# Configuration

Made from `rl/config/schema.py` by `hone config reference`; a test keeps it current.

A run's settings are layered, the later over the earlier: the defaults below, the groups that a recipe
names under `defaults:` (files of `configs/`, for example `algorithm/dapo`), the recipe itself, groups on the
command line (`algorithm=dapo` takes the place of the whole section), and `key=value` there. A layer that names
another part (`algorithm.guide`, `reward.functions.X.fn`) drops the options that were written for the part before.
`hone config show RECIPE --changed` says where each value came from.
Unknown keys are refused, with the nearest known one and with what other frameworks' names are called here.
"""


def markdown() -> str:
    """The whole page."""
    sections = [INTRODUCTION, *_section(schema.Config, "")]
    return "\n".join(sections).rstrip() + "\n"


def _section(kind: type, prefix: str) -> list[str]:
    hints = typing.get_type_hints(kind)
    rows, nested = [], []
    for field in dataclasses.fields(kind):
        key, hint = f"{prefix}{field.name}", hints[field.name]
        inner = _dataclass_in(hint)
        if inner is not None:
            marker = {list: "[]", dict: ".NAME"}.get(typing.get_origin(hint), "")  # type: ignore[call-overload]
            nested.append((inner, f"{key}{marker}."))
            if not marker:
                continue
        text = field.metadata["help"]
        if field.metadata["choices"]:
            text += " One of " + ", ".join(f"`{choice}`" for choice in field.metadata["choices"]) + "."
        rows.append(f"| `{key}` | {_type(hint)} | {_default(field)} | {text.replace('|', chr(92) + '|')} |")
    out = [f"## {prefix.rstrip('.') or 'The run'}", "", (kind.__doc__ or "").strip(), ""]
    if rows:
        out += ["| key | type | default | meaning |", "|---|---|---|---|", *rows, ""]
    done: set[type] = set()
    for inner, name in nested:
        if inner is schema.SourceConfig and name.startswith("eval."):
            out += [f"## {name.rstrip('.')}", "", "As `data.sources[]`.", ""]
        elif inner not in done:
            done.add(inner)
            out += _section(inner, name)
    return out


def _dataclass_in(hint: Any) -> type | None:
    inside = [hint, *typing.get_args(hint)]
    return next((part for part in inside if dataclasses.is_dataclass(part) and isinstance(part, type)), None)


def _type(hint: Any) -> str:
    if isinstance(hint, type) and not typing.get_args(hint):
        return hint.__name__
    return str(hint).replace("typing.", "").replace("rl.config.schema.", "").replace("|", "or")


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return f"`{field.default_factory()!r}`"
    return "" if field.default == "" else f"`{field.default!r}`"
