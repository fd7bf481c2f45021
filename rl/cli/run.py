"""`hone run`: the runs of a folder, and what can be done with one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rl.cli.report import reported
from rl.cli.train import Overrides, need_stack, train_to_end

app = typer.Typer(help="The runs of a folder; fork, replay or stop one.", no_args_is_help=True)


@app.command("ls")
def list_runs(
    folder: Annotated[Path, typer.Argument(help="Folder that holds run directories.")] = Path("runs"),
) -> None:
    """List runs with their steps, newest reward and held-out accuracy, and whether one is at work.

    Example: hone run ls
    """
    with reported():
        from rich.table import Table

        from rl.checkpoint.store import CheckpointStore
        from rl.config.errors import ConfigError
        from rl.tracking.lock import live_owner
        from rl.tracking.run_directory import RunDirectory
        from rl.tracking.tables import print_table

        found = sorted(path.parent for path in folder.glob("*/config.yaml"))
        if not found:
            raise ConfigError(f"{folder.resolve()} holds no runs; `hone train` makes them")
        table = Table("run", "state", "step", "reward/mean", "eval/accuracy", "checkpoint", box=None)
        for path in found:
            directory = RunDirectory.open(path, lock=False)
            newest: dict[str, float] = {}
            for row in directory.metrics():
                newest |= {name: value for name, value in row.items() if value is not None}
            owner = live_owner(path)
            latest = CheckpointStore(directory.checkpoints).latest()
            table.add_row(
                path.name,
                f"at work ({owner['host']}, process {owner['pid']})" if owner else "ended",
                str(newest.get("step", "")),
                *(f"{newest[name]:.4g}" if name in newest else "" for name in ("reward/mean", "eval/accuracy")),
                "" if latest is None else str(latest.step),
            )
        print_table(table)


@app.command()
def stop(
    run: Annotated[Path, typer.Argument(help="Run directory: runs/NAME.")],
    wait: Annotated[float, typer.Option("--wait", help="Seconds to wait for its end.")] = 600.0,
) -> None:
    """Ask a run on this machine to save and end after the step in progress.

    Example: hone run stop runs/arithmetic
    """
    with reported():
        import os
        import signal
        import socket
        import time

        from rl.config.errors import ConfigError
        from rl.tracking.lock import alive, live_owner
        from rl.tracking.run_directory import RunDirectory

        path = RunDirectory.open(run, lock=False).path
        owner = live_owner(path)
        if owner is None:
            raise ConfigError(f"{path} is not at work")
        if owner["host"] != socket.gethostname():
            raise ConfigError(f"{path} is at work on {owner['host']}: run this there")
        os.kill(owner["pid"], signal.SIGTERM)
        typer.echo(f"asked process {owner['pid']} to save and end")
        end = time.monotonic() + wait
        while alive(owner):
            if time.monotonic() > end:
                raise ConfigError(
                    f"process {owner['pid']} is still at work after {wait:.0f} s; a second call ends it at once"
                )
            time.sleep(0.2)
        typer.echo(f"{path} has ended; `hone resume {path}` continues it")


@app.command()
def fork(
    run: Annotated[Path, typer.Argument(help="Run directory: runs/NAME.")],
    overrides: Overrides = None,
    step: Annotated[str, typer.Option("--step", help="A step that has a checkpoint, `latest` or `best`.")] = "latest",
    force: Annotated[bool, typer.Option("--force", help="Accept changed files and settings.")] = False,
) -> None:
    """Start a new run from another run's saved state; the old one stays as it is.

    Example: hone run fork runs/arithmetic --step 40 name=slower trainer.lr=1e-6 stop.steps=80
    """
    with reported():
        from rl.checkpoint.fork import fork as make

        need_stack()
        path, changes = make(run, step, tuple(overrides or ()), force=force)
        for change in changes:
            typer.echo(f"changed {change}")
        from rl.orchestration.run import Run

        train_to_end(lambda: Run.resume(path, quiet=False))


@app.command()
def replay(
    run: Annotated[Path, typer.Argument(help="Run directory: runs/NAME.")],
    step: Annotated[int, typer.Option("--step", help="The step whose batch was kept.")],
    overrides: Overrides = None,
) -> None:
    """Train once more on a batch that ended a run, and show its metrics and the rows that are not finite.

    Runs keep such a batch in `faults/` when gradients are not finite step after step. Nothing is sampled and
    nothing is saved; settings can be tried, for example a lower `trainer.max_grad_norm`.

    Example: hone run replay runs/arithmetic --step 40 trainer.lr=1e-6
    """
    with reported():
        import asyncio

        from rich.console import Console
        from rich.table import Table

        need_stack()
        from rl.orchestration.replay import replay as train_again
        from rl.tracking.tables import print_table

        metrics, faults = asyncio.run(train_again(run, step, tuple(overrides or ())))
        table = Table("metric", "value", title=f"step {step} again", box=None)
        for name, value in sorted(metrics.items()):
            table.add_row(name, f"{value:.6g}")
        console = Console()
        print_table(table, console)
        for fault in faults:
            console.print(fault, markup=False)
        if not faults:
            console.print("every row's log-probs, advantage and weight are finite")
