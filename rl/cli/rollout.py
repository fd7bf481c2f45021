"""`hone rollout` and `hone eval`: sample and score with a model as it is, without training."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rl.cli.report import reported
from rl.tracking.tables import print_table

if TYPE_CHECKING:
    from rl.config.schema import Config
    from rl.rollout.endpoint import EndpointSampler
    from rl.types import Bundle, Task

Recipe = Annotated[str, typer.Argument(help="Recipe file or name.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="key=value settings, for example model.path=runs/A/hf.")]
Baselines = dict[str, dict[str, dict[str, float]]]
"""Mean metrics by source, baseline and name."""
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
    endpoint: Annotated[
        str | None, typer.Option(help="Base URL of a chat completions API to evaluate in place of the recipe's model.")
    ] = None,
    model: Annotated[str, typer.Option(help="Name of the endpoint's model.")] = "policy",
    key_env: Annotated[str, typer.Option(help="Environment variable with the endpoint's key.")] = "OPENAI_API_KEY",
    concurrency: Annotated[int, typer.Option(help="Episodes at once with an endpoint.", min=1)] = 8,
) -> None:
    """Evaluate a model on the recipe's held-out sources, as a run does before its first step.

    With --endpoint any OpenAI-compatible server is evaluated, on the same tasks and rewards. Environments that
    know answers which need no model show them beside the model's.

    Examples:
        hone eval grpo/arithmetic_cpu model.path=runs/mine/hf eval.tasks=64
        hone eval repo_navigator/cpu_smoke eval.sources='[{path: t.jsonl}]' --endpoint http://HOST:8000/v1 --model M
    """
    with reported():
        config = _config(recipe, overrides, endpoint)
        from rl.config.errors import ConfigError
        from rl.data import open_eval
        from rl.data.tokens import eos_ids, load_tokenizer
        from rl.orchestration.evaluate import eval_sampling
        from rl.rollout.endpoint import EndpointSampler

        tokenizer = load_tokenizer(config.model)
        tasks = open_eval(config, tokenizer)
        if not any(tasks.values()):
            raise ConfigError("eval.sources has no tasks: add a source, for example eval.sources=[{path: test.jsonl}]")
        sampling = eval_sampling(config, eos_ids(config.model, tokenizer))
        remote = None
        if endpoint is not None:
            key = os.environ.get(key_env, "")
            remote = EndpointSampler(config, endpoint, model, key, concurrency=concurrency)
        metrics, bundles = asyncio.run(_sample(config, tasks, sampling, config.eval.samples_per_task, remote))
        _write(save, bundles)
        _show(metrics, bundles, asyncio.run(_baselines(config, tasks)))


def _show(metrics: Mapping[str, float], bundles: Sequence[Bundle], baselines: Baselines) -> None:
    names = sorted({name for of_source in baselines.values() for name in of_source})
    table = Table("metric", "value", *names, box=None)
    for name, value in sorted(metrics.items()):
        _, source, *rest = name.split("/", 2)
        of_source = baselines.get(source, {})
        metric = rest[0].removeprefix("episode/") if rest else ""
        others = [of_source.get(baseline, {}).get(metric) for baseline in names]
        table.add_row(name, f"{value:.4g}", *("" if x is None else f"{x:.4g}" for x in others))
    console = Console()
    print_table(table, console)
    failed = [t for bundle in bundles for t in bundle.trajectories if t.error]
    if failed:
        console.print(f"{len(failed)} episodes failed, the first: {failed[0].error}", style="red", markup=False)


async def _baselines(config: Config, tasks: Mapping[str, Sequence[Task]]) -> Baselines:
    """Mean metrics by source and baseline, of environments that have baselines."""
    import time

    from envs.base import Limits
    from envs.registry import ENVIRONMENTS
    from rl.config.plugins import load_object

    make, options = load_object(config.environment, ENVIRONMENTS), config.environment_options
    if not hasattr(make, "baselines"):
        return {}

    async def one(task: Task) -> Mapping[str, Mapping[str, float]]:
        environment = make(**options)
        try:
            limits = Limits(config.prompt.max_tokens, lambda text: len(text) // 3 + 1, time.monotonic() + 600)
            return dict(await environment.baselines(task, seed=config.seed, limits=limits))
        finally:
            await environment.close()

    out: Baselines = {}
    for source, rows in tasks.items():
        found = [await one(task) for task in rows]
        names = {(name, metric) for row in found for name in row for metric in row[name]}
        for name, metric in sorted(names):
            values = [row[name][metric] for row in found]
            out.setdefault(source, {}).setdefault(name, {})[metric] = sum(values) / len(values)
    return out


def _config(recipe: str, overrides: list[str] | None, endpoint: str | None = None) -> Config:
    from rl.cli.train import need_stack
    from rl.config import load
    from rl.config.checks import require_complete

    config = load(recipe, overrides or ()).config
    require_complete(config)
    if endpoint is not None:
        need_stack(("transformers",))
    else:
        need_stack(("torch",) if config.rollout.engine == "hf" else ("torch", "vllm"))
    return config


async def _sample(
    config: Config,
    tasks: dict[str, list[Task]],
    sampling: Any,
    samples: int,
    remote: EndpointSampler | None = None,
) -> tuple[dict[str, float], list[Bundle]]:
    from rewards.scorer import Scorer
    from rl.orchestration.evaluate import evaluate as run_evaluation
    from rl.tracking.progress import Progress

    progress = Progress(quiet=False)
    worker: Any = remote
    if remote is None:
        from rl.rollout.worker import RolloutWorker

        worker = RolloutWorker(config, trained=False)
    scorer = Scorer(config.reward, base_dir=Path.cwd())
    try:
        if remote is None:
            with progress.phase("starting the engine"):
                await worker.start()
        with progress.phase("sampling") as phase:
            return await run_evaluation(
                tasks, worker, scorer, sampling=sampling, samples=samples, label="once", on_done=phase.advance
            )
    finally:
        scorer.close()
        if remote is None:
            await worker.stop()


def _write(path: Path | None, bundles: list[Bundle]) -> None:
    if path is None:
        return
    from rl.tracking.jsonable import line
    from rl.tracking.samples import sample_rows

    count = sum(len(bundle.trajectories) for bundle in bundles)
    path.write_text("".join(map(line, sample_rows(0, bundles, "rollout", count))), encoding="utf-8")
