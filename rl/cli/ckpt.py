"""`hone ckpt`: look at, check, thin out and export the checkpoints of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from rl.cli.report import reported
from rl.tracking.tables import print_table

if TYPE_CHECKING:
    from rl.checkpoint.store import CheckpointStore
    from rl.config.schema import Config

app = typer.Typer(help="Checkpoints of a run.", no_args_is_help=True)
RunPath = Annotated[Path, typer.Argument(help="Run directory: runs/NAME.")]


@app.command("ls")
def list_checkpoints(run: RunPath) -> None:
    """List the checkpoints with their size, value and state.

    Example: hone ckpt ls runs/arithmetic_cpu
    """
    with reported():
        from rl.checkpoint.store import verify

        _, store = _open(run)
        latest, best = store.latest(), store.best()
        table = Table("step", "GiB", "value", "", box=None)
        for checkpoint in store.all():
            fault = verify(checkpoint, contents=False)
            if fault is not None:
                table.add_row(str(checkpoint.step), "", "", f"damaged: {fault}")
                continue
            marks = [name for name, c in (("latest", latest), ("best", best)) if c == checkpoint]
            value = checkpoint.value()
            size = f"{checkpoint.bytes() / 2**30:.2f}"
            table.add_row(str(checkpoint.step), size, "" if value is None else f"{value:.4g}", ", ".join(marks))
        print_table(table)


@app.command()
def verify(run: RunPath) -> None:
    """Read every file of every checkpoint and compare checksums; ends with 1 where something is wrong.

    Example: hone ckpt verify runs/arithmetic_cpu
    """
    with reported():
        from rl.checkpoint.store import verify as check

        _, store = _open(run)
        faults = {c.step: check(c) for c in store.all()}
        for step, fault in faults.items():
            typer.echo(f"step {step}: {fault or 'whole'}")
        if any(faults.values()):
            raise typer.Exit(1)


@app.command()
def prune(
    run: RunPath,
    keep: Annotated[int | None, typer.Option("--keep", help="Newest to keep instead of the run's own rule.")] = None,
) -> None:
    """Delete the checkpoints that the run's rules do not keep; the newest whole one always stays.

    Example: hone ckpt prune runs/arithmetic_cpu --keep 1
    """
    with reported():
        import dataclasses

        _, store = _open(run)
        if keep is not None:
            store.retention = dataclasses.replace(store.retention, last=keep, every=0)
        before = {c.step for c in store.all()}
        store.prune()
        typer.echo(f"deleted {sorted(before - {c.step for c in store.all()}) or 'nothing'}")


@app.command()
def export(
    checkpoint: Annotated[str, typer.Argument(help="runs/NAME, or runs/NAME@best, @latest, @STEP.")],
    folder: Annotated[Path, typer.Argument(help="New folder in Hugging Face format.")],
    dtype: Annotated[str, typer.Option("--dtype", help="bfloat16, float16 or float32.")] = "bfloat16",
) -> None:
    """Write a checkpoint as a model that Transformers and vLLM load, adapters merged.

    Example: hone ckpt export runs/arithmetic_cpu@best my_model
    """
    with reported():
        from rl.checkpoint.export import export as write
        from rl.cli.train import need_stack
        from rl.config.errors import ConfigError

        if dtype not in ("bfloat16", "float16", "float32"):
            raise ConfigError(f"--dtype: {dtype!r} is none of bfloat16, float16, float32")
        need_stack(("torch", "transformers"))
        run, _, name = checkpoint.partition("@")
        config, store = _open(Path(run))
        typer.echo(f"wrote {write(store.find(name or 'latest'), config, folder, dtype=dtype)}")


def _open(run: Path) -> tuple[Config, CheckpointStore]:
    from rl.checkpoint.store import CheckpointStore, retention
    from rl.config import load_resolved
    from rl.tracking.run_directory import RunDirectory

    directory = RunDirectory.open(run, lock=False)
    config = load_resolved(directory.config_path).config
    return config, CheckpointStore(directory.checkpoints, retention(config.checkpoint))
