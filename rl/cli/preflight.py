"""`hone preflight`: what can be checked before a run, with nothing started."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from rl.cli.report import reported

if TYPE_CHECKING:
    from rl.config.schema import Config


def preflight(
    recipe: Annotated[str, typer.Argument(help="Recipe file or name.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value settings.")] = None,
    data: Annotated[bool, typer.Option(help="Also read tokenizer and data.")] = True,
) -> None:
    """Check a recipe and print its batch arithmetic; starts nothing.

    Example: hone preflight grpo/qwen2.5_7b --no-data
    """
    with reported():
        from rl.config import load
        from rl.config.checks import require_complete

        config = load(recipe, overrides or ()).config
        require_complete(config)
        console = Console(highlight=False)
        if config.method != "rl":
            _offline(console, config, data)
            return
        samples = config.tasks_per_step * config.samples_per_task
        updates = config.updates_per_step * config.epochs_per_step
        console.print(
            f"A step samples {config.tasks_per_step} tasks x {config.samples_per_task} = {samples} trajectories and "
            f"makes {updates} update(s) of {samples // config.updates_per_step} trajectories each, in packed "
            f"micro-batches of at most {config.trainer.max_tokens_per_microbatch} tokens."
        )
        console.print(
            f"In verl's words: train_batch_size={config.tasks_per_step}, rollout.n={config.samples_per_task}, "
            f"ppo_mini_batch_size={config.tasks_per_step // config.updates_per_step or 1}, "
            f"ppo_epochs={config.epochs_per_step}."
        )
        console.print(
            f"In TRL's words: num_generations={config.samples_per_task}, "
            f"generation batch {samples}, num_iterations={config.epochs_per_step}."
        )
        console.print(
            f"Actors: {config.rollout.workers} {config.rollout.engine} engine(s), {config.trainer.ranks} trainer "
            f"rank(s) at ZeRO stage {config.trainer.zero_stage}; device {config.device}."
        )
        _placement(console, config)
        _memory(console, config)
        if data:
            from rl.data import open_eval, open_training
            from rl.data.tokens import load_tokenizer

            tokenizer = load_tokenizer(config.model)
            stream, held_out = open_training(config, tokenizer), open_eval(config, tokenizer)
            console.print(
                f"Data: {stream.tasks_per_epoch} training tasks (left out: {stream.counts or 'none'}), evaluation "
                f"{ {name: len(rows) for name, rows in held_out.items()} }."
            )
        console.print("[green]ok[/green]: nothing was started. Not checked here: GPUs and what rewards answer.")


def _offline(console: Console, config: Config, data: bool) -> None:
    from rl.offline import refuse_unkept, row_batches

    refuse_unkept(config)
    rows, batches = row_batches(config)
    console.print(
        f"An update learns from {config.tasks_per_step} rows, in {batches} micro-batch(es) of {rows}; "
        f"method {config.method} in one process through TRL; device {config.device}."
    )
    if data:
        from rl.data.examples import read_examples

        counts = [len(read_examples(config, part, chat=True)) for part in (config.data.sources, config.eval.sources)]
        console.print(f"Data: {counts[0]} training examples, {counts[1]} for evaluation.")
    console.print("[green]ok[/green]: nothing was started.")


def _placement(console: Console, config: Config) -> None:
    from rl.orchestration.placement import plan_placement

    apart = config.rollout.workers * config.rollout.tensor_parallel
    gpus = 0 if config.device == "cpu" else config.trainer.ranks + (0 if config.colocate else apart)
    placement = plan_placement(config, gpus=gpus)
    console.print(
        f"Placement ({'CPU' if not gpus else f'with {gpus} GPUs'}): bundles {list(placement.bundles)}, trainer ranks "
        f"in {list(placement.trainer)}, engines in {list(placement.engines)}, strategy {placement.strategy}."
    )


def _memory(console: Console, config: Config) -> None:
    from rl.config.memory import GIB, estimate, read_shape
    from rl.pretrained import PACKAGED, cache_dir

    packaged = cache_dir() / "models" / config.model.path
    folder = packaged if config.model.path in PACKAGED else Path(config.model.path).expanduser()
    if not (folder / "config.json").is_file():
        console.print(f"Memory: {config.model.path} is not on this machine, so it is not estimated.")
        return
    parts = estimate(config, read_shape(folder))
    console.print("Memory, a first estimate (GiB):")
    for name, size in parts.items():
        if size:
            console.print(f"  {size / GIB:7.2f}  {name}")
    for who in ("trainer", "engine"):
        total = sum(size for name, size in parts.items() if name.startswith(who))
        console.print(f"  {total / GIB:7.2f}  [bold]one {who}[/bold]")
