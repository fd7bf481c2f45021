"""`hone rollout` and `hone eval`: sample and score with a model as it is, without training."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rl.cli.report import reported

if TYPE_CHECKING:
    from rl.config.schema import Config
    from rl.types import Bundle, Task

Recipe = Annotated[str, typer.Argument(help="Recipe file or name.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="key=value settings, for example model.path=runs/A/hf.")]
Save = Annotated[Path | None, typer.Option("--save", help="Write all samples to this JSONL file.")]


def rollout(
    recipe: Recipe,
    overrides: Overrides = None,
    number: Annotated[int, typer.Option("-n", help="Tasks to sample.", min=1)] = 4,
    samples: Annotated[int, typer.Option("--samples", help="Samples of each task.", min=1)] = 1,
    save: Save = None,
) -> None:
    """Show samples and their rewards at the recipe's sampling settings.

    Example: hone rollout grpo/arithmetic_cpu -n 4
    """
    with reported():
        config = _config(recipe, overrides)
        from rl.data import open_training
        from rl.data.tokens import eos_ids, load_tokenizer
        from rl.orchestration.evaluate import train_sampling

        tokenizer = load_tokenizer(config.model)
        tasks = open_training(config, tokenizer).peek(number)
        sampling = train_sampling(config, eos_ids(config.model, tokenizer))
        _, bundles = asyncio.run(_sample(config, {"train": tasks}, sampling, samples))
        _write(save, bundles)
        console = Console(highlight=False)
        for bundle in bundles:
            for t in bundle.trajectories:
                console.rule(f"{t.bundle_id} sample {t.sample_index}")
                for message in t.messages:
                    console.print(f"[bold]{message.get('role')}[/bold] {escape(str(message.get('content')))}")
                rewards = ", ".join(f"{name} {value}" for name, value in t.rewards.items()) or "none"
                console.print(
                    f"[green]reward {t.reward}[/green] ({escape(rewards)}); finish {t.finish}; "
                    f"{t.response_tokens} tokens" + (f"; error {escape(t.error)}" if t.error else "")
                )


def evaluate(
    recipe: Recipe,
    overrides: Overrides = None,
    save: Save = None,
) -> None:
    """Evaluate a model on the recipe's held-out sources, as a run does before its first step.

    Example: hone eval grpo/arithmetic_cpu model.path=runs/mine/hf eval.tasks=64
    """
    with reported():
        config = _config(recipe, overrides)
        from rl.config.errors import ConfigError
        from rl.data import open_eval
        from rl.data.tokens import eos_ids, load_tokenizer
        from rl.orchestration.evaluate import eval_sampling

        tokenizer = load_tokenizer(config.model)
        tasks = open_eval(config, tokenizer)
        if not any(tasks.values()):
            raise ConfigError("eval.sources has no tasks: add a source, for example eval.sources=[{path: test.jsonl}]")
        sampling = eval_sampling(config, eos_ids(config.model, tokenizer))
        metrics, bundles = asyncio.run(_sample(config, tasks, sampling, config.eval.samples_per_task))
        _write(save, bundles)
        table = Table("metric", "value", box=None)
        for name, value in sorted(metrics.items()):
            table.add_row(name, f"{value:.4g}")
        Console().print(table)


def _config(recipe: str, overrides: list[str] | None) -> Config:
    from rl.cli.train import need_stack
    from rl.config import load
    from rl.config.checks import require_complete

    config = load(recipe, overrides or ()).config
    require_complete(config)
    need_stack(("torch",) if config.rollout.engine == "hf" else ("torch", "vllm"))
    return config


async def _sample(
    config: Config, tasks: dict[str, list[Task]], sampling: Any, samples: int
) -> tuple[dict[str, float], list[Bundle]]:
    from rewards.scorer import Scorer
    from rl.orchestration.evaluate import evaluate as run_evaluation
    from rl.rollout.worker import RolloutWorker
    from rl.tracking.progress import Progress

    progress = Progress(quiet=False)
    worker = RolloutWorker(config, trained=False)
    scorer = Scorer(config.reward, base_dir=Path.cwd())
    try:
        with progress.phase("starting the engine"):
            await worker.start()
        with progress.phase("sampling") as phase:
            return await run_evaluation(
                tasks, worker, scorer, sampling=sampling, samples=samples, label="once", on_done=phase.advance
            )
    finally:
        scorer.close()
        await worker.stop()


def _write(path: Path | None, bundles: list[Bundle]) -> None:
    if path is None:
        return
    from rl.tracking.jsonable import line
    from rl.tracking.samples import sample_rows

    count = sum(len(bundle.trajectories) for bundle in bundles)
    path.write_text("".join(map(line, sample_rows(0, bundles, "rollout", count))), encoding="utf-8")
