"""`hone check env`: does an environment keep its contract?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl.cli.report import reported

if TYPE_CHECKING:
    from rl.types import Task

Name = Annotated[str, typer.Argument(help="Registry name, `package.module:Class` or `path/file.py:Class`.")]
Options = Annotated[list[str] | None, typer.Argument(help="Its options: `mode=paper max_calls=4`.")]
Tasks = Annotated[
    Path | None, typer.Option("--tasks", help="JSONL or Parquet file; the environment's own examples when not given.")
]


def check_env(
    environment: Name,
    options: Options = None,
    tasks: Tasks = None,
    number: Annotated[int, typer.Option("-n", help="Random episodes of each task.")] = 8,
    first: Annotated[int, typer.Option("--first", help="Tasks that are tried.")] = 3,
) -> None:
    """Play scripted and random episodes and report every broken promise.

    A program that owns its loop is run against an endpoint that says the same each time.

    Examples:
        hone check env my_env.py:Maze size=5 --tasks mazes.jsonl
        hone check env command command=[python,agent.py] --tasks mazes.jsonl
    """
    import asyncio

    from rich.console import Console
    from rich.markup import escape

    from envs.checking import check_environment
    from envs.checking_program import check_program
    from envs.program import is_program

    console = Console(soft_wrap=True)
    with reported():
        make, found = open_environment(environment, options, tasks, first)
        problems = []
        for task in found:
            made = make()
            check = check_program(make, task) if is_program(made) else check_environment(make, task, episodes=number)
            for problem in asyncio.run(check):
                problems.append(problem)
                where = f"[dim](task {escape(task.task_id)})[/dim]"
                console.print(f"[red]{escape(problem.where)}[/red]: {escape(problem.what)} {where}")
    if problems:
        console.print(f"{len(problems)} problems")
        raise typer.Exit(1)
    console.print(f"[green]{escape(environment)}[/green] keeps the contract on {len(found)} tasks")


def open_environment(
    name: str, options: list[str] | None, tasks: Path | None, first: int
) -> tuple[Callable[[], Any], list[Task]]:
    """The factory of an environment or a program, and the tasks to play.

    Raises:
        ConfigError: unknown environment or option, or no tasks.
    """
    from envs.registry import ENVIRONMENTS
    from rl.config.errors import ConfigError
    from rl.config.loading import parse_overrides
    from rl.config.plugins import load_object

    kind = load_object(name, ENVIRONMENTS)
    arguments: Mapping[str, Any] = parse_overrides(options or [])
    try:
        kind(**arguments)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} does not start with the options {dict(arguments)}: {error}") from error
    return lambda: kind(**arguments), load_tasks(kind, tasks, first)


def load_tasks(kind: Any, path: Path | None, first: int) -> list[Task]:
    """Tasks of a file, or what the environment's `example_tasks()` gives."""
    from rl.config.schema import PromptConfig, SourceConfig
    from rl.data.layouts import to_task
    from rl.data.sources import read_rows
    from rl.types import Task

    if path is not None:
        source = SourceConfig(path=str(path), size=first)
        rows = read_rows(source)
        return [
            to_task(r, source, PromptConfig(), name=path.stem, where=f"{path} row {i}") for i, r in enumerate(rows, 1)
        ]
    if hasattr(kind, "example_tasks"):
        return list(kind.example_tasks())[:first]
    return [Task("example", ({"role": "user", "content": "Say hello."},))]
