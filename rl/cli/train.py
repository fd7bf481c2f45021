"""`hone train` and `hone resume`: the verbs that train."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl.cli.report import TERMINATED, reported

if TYPE_CHECKING:
    from rl.offline import Outcome
    from rl.orchestration.run import Run
    from rl.tracking.run_directory import RunDirectory

Recipe = Annotated[str, typer.Argument(help="Recipe file, or the name of a shipped one: grpo/arithmetic_cpu.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Settings to change: `trainer.lr=1e-5 stop.steps=20`.")]

STACK = ("torch", "ray", "vllm", "deepspeed")


def train(
    recipe: Recipe,
    overrides: Overrides = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run of the same name.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything and start nothing.")] = False,
) -> None:
    """Train a model as a recipe says.

    Example: hone train grpo/arithmetic_cpu stop.steps=5
    """
    if dry_run:
        from rl.cli.preflight import preflight

        preflight(recipe, overrides, data=True)
        return
    with reported():
        from rl.config import load
        from rl.config.checks import require_complete

        resolved = load(recipe, overrides or ())
        require_complete(resolved.config)
        if resolved.config.method != "rl":
            need_stack(("torch", "trl"))
            from rl import offline

            report_offline(*offline.train(resolved, overwrite=overwrite))
            return
        need_stack()
        warn_of_shadows()
        from rl.orchestration.run import Run

        train_to_end(lambda: Run.from_resolved(resolved, overwrite=overwrite, quiet=False))


def resume(
    place: Annotated[str, typer.Argument(metavar="RUN", help="Run directory runs/NAME, or URL of its copy.")],
    overrides: Overrides = None,
    force: Annotated[bool, typer.Option("--force", help="Accept changed files and settings.")] = False,
) -> None:
    """Continue a run from its newest complete checkpoint; a URL is copied to runs/NAME first.

    Example: hone resume runs/arithmetic stop.steps=100
    """
    with reported():
        from rl.checkpoint.copies import fetch, is_url
        from rl.config import load_resolved
        from rl.tracking.run_directory import RunDirectory

        run = fetch(place) if is_url(place) else Path(place)
        saved = load_resolved(RunDirectory.open(run, lock=False).config_path).config
        if saved.method != "rl":
            need_stack(("torch", "trl"))
            from rl import offline

            report_offline(*offline.resume(run, tuple(overrides or ())))
            return
        need_stack()
        from rl.orchestration.run import Run

        train_to_end(lambda: Run.resume(run, *(overrides or ()), force=force, quiet=False))


def train_to_end(make: Callable[[], Run]) -> None:
    """Trains until a stop rule fires, and prints the summary; `reported` turns faults into messages."""
    from rl.tracking.summary import summarise

    with make() as run:
        for change in run.changes:
            typer.echo(f"changed {change}")
        run.start()
        already = run.session.stop_reason()
        if already is not None:
            typer.echo(
                f"Nothing to do: {already}. Raise the limit to go on, for example `hone resume "
                f"{run.directory.path} stop.steps={run.session.counters.step * 2}`."
            )
            return
        reason = run.train()
        counters, directory, asked = run.session.counters, run.directory, run.session.stop_asked
    summarise(directory, reason=reason, counters=counters)
    if asked is not None:
        raise typer.Exit(TERMINATED)


def report_offline(directory: RunDirectory, outcome: Outcome) -> None:
    """Prints the summary of a run of TRL's trainers."""
    from rl.tracking.summary import summarise

    following = f"hone train grpo/arithmetic_cpu name=rl model.path={directory.path / 'model'}"
    summarise(directory, reason=outcome.reason, counters=outcome, following=following)
    if outcome.told:
        raise typer.Exit(TERMINATED)


def warn_of_shadows() -> None:
    """Says when a folder of the user's is imported, or could be, in place of one of ours."""
    from rl.cli.doctor import shadowing

    for text in shadowing():
        typer.echo(f"warning: {text}", err=True)


def need_stack(packages: Sequence[str] = STACK) -> None:
    """Stops with advice where an extra is missing.

    Raises:
        ConfigError: one of ``packages`` is not installed.
    """
    from rl.config.errors import ConfigError

    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"this needs {', '.join(missing)}: install `hone-rl[cpu]` or `hone-rl[gpu]` (Linux), "
            "or run `make train` in a checkout"
        )
