"""`hone check reward`: try a reward function alone, on rows of yours and on odd texts."""

from __future__ import annotations

import asyncio
import inspect
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rl.cli.report import reported
from rl.tracking.tables import print_table

if TYPE_CHECKING:
    from rl.types import Task, Trajectory

ODD = {
    "empty": "",
    "one space": " ",
    "200,000 letters": "a" * 200_000,
    "broken Unicode": "\ud800 \udfff",
    "control characters": "\x00\x01\x1b[31m",
    "deep brackets": "(" * 10_000 + "{" * 10_000,
    "right to left": "\u202e42\u202c",
    "no message": None,
}


def check_reward(
    fn: Annotated[str, typer.Argument(help="Registry name, package.module:function or path/file.py:function.")],
    data: Annotated[Path, typer.Option("--data", help="JSONL rows with the reward's columns.", dir_okay=False)],
    text: Annotated[
        str,
        typer.Option("--text", help="Column that holds a completion; the gold answer is tried where it is missing."),
    ] = "completion",
    gold: Annotated[str, typer.Option("--gold", help="Column with the gold answer.")] = "answer",
    option: Annotated[list[str] | None, typer.Option("--option", help="key=value given to the function.")] = None,
    number: Annotated[int, typer.Option("-n", help="Rows to try.", min=1)] = 8,
) -> None:
    """Show the scores, the time of a call, whether it repeats itself, and whether odd texts break it.

    Example: hone check reward my_reward.py:score --data sample.jsonl
    """
    with reported():
        from rewards.contract import name_of
        from rewards.loading import load_reward
        from rl.config.loading import parse_overrides
        from rl.config.schema import SourceConfig
        from rl.data.sources import read_rows

        function = load_reward(fn, Path.cwd())
        options = parse_overrides(option or [])
        console = Console(highlight=False)
        console.print(f"[bold]{escape(name_of(function))}[/bold]{escape(str(inspect.signature(function)))}")
        rows = [row for row, _ in zip(read_rows(SourceConfig(path=str(data))), range(number), strict=False)]
        table = Table("row", "text", "score", "ms", box=None)
        repeated = True
        for i, row in enumerate(rows, start=1):
            said = str(row.get(text, row.get(gold, "")))
            task, trajectory = _made(row, said)
            score, seconds = _timed(function, task, trajectory, options)
            repeated = repeated and score == _timed(function, task, trajectory, options)[0]
            shown = "not scored" if score is None else f"{score:g}"
            table.add_row(str(i), escape(said[:60].replace("\n", " ")), shown, f"{seconds * 1e3:.1f}")
        print_table(table, console)
        console.print("repeats itself" if repeated else "[red]gives another score at the second call[/red]")
        faults = _odd(function, rows[0], options)
        for what, fault in faults.items():
            console.print(f"[red]{what}[/red]: {escape(fault)}")
        if faults:
            console.print("a run ends when a reward raises: catch what such texts cause, and score them")
        else:
            console.print(f"odd texts: {len(ODD)} tried, none breaks it")
        if faults or not repeated:
            raise typer.Exit(1)


def _made(row: dict[str, Any], said: str | None) -> tuple[Task, Trajectory]:
    from rl.types import Finish, Task, Trajectory

    prompt = row.get("prompt") or row.get("question") or ""
    asked = tuple(prompt) if isinstance(prompt, list) else ({"role": "user", "content": str(prompt)},)
    messages = asked if said is None else (*asked, {"role": "assistant", "content": said})
    task = Task("check", asked, dict(row))
    return task, Trajectory("check", "check", "solution", 0, 0, [], messages, Finish.STOP, len(asked))


def _timed(function: Any, task: Task, trajectory: Trajectory, options: dict[str, Any]) -> tuple[float | None, float]:
    from rewards.contract import RewardError, arguments_for, checked, name_of

    arguments = arguments_for(function, [task], [trajectory], options)
    began = time.perf_counter()
    try:
        scores = function(**arguments)
        if inspect.isawaitable(scores):
            scores = asyncio.run(_awaited(scores))
    except Exception as error:  # a user's code may raise anything
        raise RewardError(f"{name_of(function)} raised {type(error).__name__}: {error}") from error
    return checked(function, scores, 1)[0], time.perf_counter() - began


async def _awaited(scores: Any) -> Any:
    return await scores


def _odd(function: Any, row: dict[str, Any], options: dict[str, Any]) -> dict[str, str]:
    """What goes wrong, by kind of text."""
    from rewards.contract import RewardError

    faults = {}
    for what, said in ODD.items():
        try:
            _timed(function, *_made(row, said), options)
        except RewardError as error:
            faults[what] = str(error)
    return faults
