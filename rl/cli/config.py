"""`hone config`: settings and where each came from, algorithms, parts, and the reference of all keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.table import Table

from rl.cli.report import reported
from rl.tracking.tables import print_table

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
        print_table(table)


@app.command()
def algorithms() -> None:
    """List the named algorithms: `defaults: [algorithm/NAME]` in a recipe.

    Example: hone config algorithms
    """
    with reported():
        from rl.config.loading import find_group

        table = Table("name", "what it is", box=None)
        for path in sorted(find_group("algorithm/grpo").parent.glob("*.yaml")):
            first = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("#").strip()
            table.add_row(path.stem, first.partition(": ")[2] or first)
        print_table(table)


@app.command()
def parts() -> None:
    """List what can be named in a recipe: estimators, losses, guides, rewards, environments, planners.

    Example: hone config parts
    """
    with reported():
        table = Table("setting", "name", "what it is", box=None)
        for setting, registry in _registries().items():
            for name, part in sorted(registry.items()):
                lines = (getattr(part, "__doc__", None) or "").strip().splitlines()
                table.add_row(setting, name, lines[0] if lines else "")
        print_table(table)


@app.command()
def reference() -> None:
    """Print the reference of every key as Markdown; `docs/configuration.md` is its output.

    Example: hone config reference > docs/configuration.md
    """
    from rl.config.reference import markdown

    typer.echo(markdown(), nl=False)


def _registries() -> dict[str, Mapping[str, Any]]:
    from envs.registry import ENVIRONMENTS
    from rewards.registry import REWARDS
    from rl.objectives.advantages import ADVANTAGES
    from rl.objectives.corrections import CORRECTIONS
    from rl.objectives.guides import GUIDES
    from rl.objectives.kl import KL, VOCAB_KL
    from rl.objectives.policy_losses import POLICY_LOSSES
    from rl.objectives.token_advantages import TOKEN_ADVANTAGES
    from rl.planners import PLANNERS

    return {
        "algorithm.advantage": ADVANTAGES,
        "algorithm.token_advantage": TOKEN_ADVANTAGES,
        "algorithm.policy_loss": POLICY_LOSSES,
        "algorithm.kl_estimator": {**KL, **{name: term.fn for name, term in VOCAB_KL.items()}},
        "algorithm.guide": GUIDES,
        "algorithm.correction": CORRECTIONS,
        "planner": PLANNERS,
        "environment": ENVIRONMENTS,
        "reward.functions.NAME.fn": REWARDS,
    }


def _leaves(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        return [leaf for k, v in value.items() for leaf in _leaves(v, f"{prefix}.{k}" if prefix else str(k))]
    return [(prefix, value)]


def _origin(key: str, origins: dict[str, str]) -> str:
    inside = {where for name, where in origins.items() if name.startswith(f"{key}.")}
    if inside:
        return ", ".join(sorted(inside))
    while key:
        if key in origins:
            return origins[key]
        key = key.rpartition(".")[0]
    return "default"
