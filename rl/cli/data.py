"""`hone data show`: what the policy and the rewards will be given, with no engine started."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from rl.cli.report import reported

app = typer.Typer(help="The data of a recipe.", no_args_is_help=True)
BINS = 10


@app.callback()
def _group() -> None:
    """The data of a recipe."""


@app.command()
def show(
    recipe: Annotated[str, typer.Argument(help="Recipe file or name.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value settings.")] = None,
    number: Annotated[int, typer.Option("-n", help="Tasks to show.", min=0)] = 3,
) -> None:
    """Show rendered prompts, their tokens, the columns of each reward, and the lengths of all prompts.

    Example: hone data show grpo/arithmetic_cpu -n 2
    """
    with reported():
        from rl.config import load
        from rl.config.checks import require_complete
        from rl.data import open_training
        from rl.data.prompts import PromptBuilder
        from rl.data.tokens import eos_ids, load_tokenizer

        config = load(recipe, overrides or ()).config
        require_complete(config)
        console = Console(highlight=False)
        tokenizer = load_tokenizer(config.model)
        stream = open_training(config, tokenizer)
        builder = PromptBuilder(tokenizer, config.prompt)
        for task in stream.peek(number):
            ids = builder.encode(task.messages)
            console.rule(f"task {task.task_id} of {task.source}")
            console.print(escape(builder.render(task.messages)))
            console.print(f"[bold]{len(ids)} prompt tokens[/bold] (mask 0): {ids}")
            console.print(
                f"then up to {config.rollout.max_response_tokens} sampled tokens (mask 1), ended by one of "
                f"{ {i: tokenizer.convert_ids_to_tokens(i) for i in eos_ids(config.model, tokenizer)} }"
            )
            for name in task.rewards if task.rewards is not None else config.reward.functions:
                console.print(f"reward [bold]{name}[/bold] gets {_short(task.columns)}")
        lengths = [len(builder.encode(task.messages)) for task in stream.tasks()]
        console.rule(f"{len(lengths)} training tasks")
        for low, high, count in histogram(lengths):
            console.print(f"{low:>6}-{high:<6} tokens {count:>7} {'█' * round(40 * count / len(lengths))}")
        console.print(
            f"longest prompt {max(lengths)} of {config.prompt.max_tokens} tokens; left out: {dict(stream.counts) or 0}"
        )


def histogram(lengths: list[int]) -> list[tuple[int, int, int]]:
    """(lowest, highest, count) of at most `BINS` bins of equal width over ``lengths``."""
    low, high = min(lengths), max(lengths)
    width = max(1, -(-(high - low + 1) // BINS))
    bins = [(start, start + width - 1) for start in range(low, high + 1, width)]
    return [(a, b, sum(a <= n <= b for n in lengths)) for a, b in bins]


def _short(columns: Any) -> str:
    return escape(", ".join(f"{k}={str(v)[:80]!r}" for k, v in columns.items())) or "no columns"
