"""`hone config show`: the resolved settings and where each came from."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from rl.cli.report import reported

app = typer.Typer(help="Settings of a recipe.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Settings of a recipe."""


@app.command()
def show(
    recipe: Annotated[str, typer.Argument(help="Recipe file or name.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value settings.")] = None,
    changed: Annotated[bool, typer.Option("--changed", help="Only what differs from the defaults.")] = False,
) -> None:
    """Print every setting with its value and origin.

    Example: hone config show grpo/arithmetic_cpu trainer.lr=1e-5 --changed
    """
    with reported():
        from rl.config import load

        resolved = load(recipe, overrides or ())
        table = Table("setting", "value", "from", box=None)
        for key, value in _leaves(dataclasses.asdict(resolved.config)):
            origin = _origin(key, resolved.origins)
            if origin != "default" or not changed:
                table.add_row(key, repr(value), origin)
        Console().print(table)


def _leaves(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        return [leaf for k, v in value.items() for leaf in _leaves(v, f"{prefix}.{k}" if prefix else str(k))]
    return [(prefix, value)]


def _origin(key: str, origins: dict[str, str]) -> str:
    while key:
        if key in origins:
            return origins[key]
        inside = {where for name, where in origins.items() if name.startswith(f"{key}.")}
        if inside:
            return ", ".join(sorted(inside))
        key = key.rpartition(".")[0]
    return "default"
