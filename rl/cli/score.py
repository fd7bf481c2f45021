"""`hone score`: score saved rollouts again, and compare two rewards on them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rl.cli.report import reported
from rl.tracking.tables import print_table

if TYPE_CHECKING:
    from rl.types import Task, Trajectory

SAVED = "saved"


@dataclass(frozen=True, slots=True)
class Rollout:
    """One saved sample."""

    group: str
    """Samples of one task in one step have the same; they are scored in one call."""
    task: Task
    trajectory: Trajectory
    reward: float | None
    """What it got in the run."""


def score(
    rollouts: Annotated[
        list[Path], typer.Argument(help="Rollout files, a run's directory, or JSONL rows with prompt and completion.")
    ],
    reward: Annotated[
        list[str],
        typer.Option(
            "--reward", help="A reward; given twice, two are compared. One alone is compared with what was saved."
        ),
    ],
    option: Annotated[
        list[str] | None,
        typer.Option("--option", help="key=value for every reward, or 1.key=value for the first alone."),
    ] = None,
    number: Annotated[int, typer.Option("-n", help="How many differing samples to show.", min=0)] = 10,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write each sample with its scores to this JSONL file.")
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", help="Limit for one sample.", min=0.01)] = 10.0,
    workers: Annotated[int, typer.Option("--workers", help="Scoring processes.", min=1)] = 2,
) -> None:
    """Score saved rollouts with one reward or two: means, shares, and the samples on which they differ.

    Examples:
        hone score runs/arithmetic_cpu --reward math
        hone score rollouts.jsonl --reward old.py:score --reward new.py:score --option 2.strict=true
    """
    with reported():
        from rl.config.errors import ConfigError
        from rl.tracking.jsonable import line, write_atomic

        if not 1 <= len(reward) <= 2:
            raise ConfigError("--reward is given once or twice")
        rows = [row for path in rollouts for row in read(path)]
        if not rows:
            raise ConfigError("no rollouts in " + ", ".join(map(str, rollouts)))
        names = [f"{i}:{spec}" for i, spec in enumerate(reward, start=1)]
        scored = asyncio.run(_score(rows, dict(zip(names, reward, strict=True)), option or [], seconds, workers))
        if len(names) == 1:
            saved = [row.reward for row in rows]
            columns = {SAVED: saved, names[0]: scored[names[0]]} if any(v is not None for v in saved) else scored
        else:
            columns = scored
        _show(Console(highlight=False), rows, columns, number)
        if out is not None:
            lines = (
                line(
                    {
                        "task_id": row.task.task_id,
                        "prompt": list(row.task.messages),
                        "completion": list(row.trajectory.completion),
                        "scores": {name: values[i] for name, values in columns.items()},
                    }
                )
                for i, row in enumerate(rows)
            )
            write_atomic(out, "".join(lines))


def read(path: Path) -> list[Rollout]:
    """Rollouts of a file or of all files of a run, each with the name of its group.

    Raises:
        ConfigError: the path is missing, or a row has no completion.
    """
    from rl.config.errors import ConfigError
    from rl.config.schema import SourceConfig
    from rl.data.sources import read_rows
    from rl.tracking.samples import from_row

    if path.is_dir():
        files = sorted((path / "rollouts" if (path / "rollouts").is_dir() else path).glob("*.jsonl"))
        if not files:
            raise ConfigError(f"{path} has no rollouts; is it a run's directory?")
    else:
        files = [path]
    found: list[Rollout] = []
    for file in files:
        for number, row in enumerate(read_rows(SourceConfig(path=str(file))), start=1):
            try:
                task, trajectory = from_row(row)
            except (KeyError, TypeError, ValueError) as error:
                raise ConfigError(f"{file} row {number} is no rollout: {error!r}") from error
            apart = trajectory.bundle_id or str(number)
            saved = row.get("reward") if isinstance(row.get("reward"), (int, float)) else None
            found.append(Rollout(f"{file}:{row.get('step')}:{apart}:{trajectory.kind}", task, trajectory, saved))
    return found


async def _score(
    rows: Sequence[Rollout], rewards: dict[str, str], options: Sequence[str], seconds: float, workers: int
) -> dict[str, list[float | None]]:
    from rewards.scorer import Scorer
    from rl.config.loading import parse_overrides
    from rl.config.schema import RewardConfig, RewardFunctionConfig
    from rl.types import Bundle, Group

    functions = {}
    for i, (name, spec) in enumerate(rewards.items(), start=1):
        own = [o.removeprefix(f"{i}.") for o in options if o.startswith(f"{i}.")]
        common = [o for o in options if o[:2] not in ("1.", "2.")]
        given = parse_overrides([*common, *own])
        functions[name] = RewardFunctionConfig(fn=spec, options=given, timeout_s=seconds)
    groups: dict[str, list[Rollout]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    scorer = Scorer(RewardConfig(functions=functions, workers=workers), base_dir=Path.cwd())
    try:
        limit = asyncio.Semaphore(4 * workers)

        async def one(name: str, members: list[Rollout]) -> None:
            task, trajectories = members[0].task, [row.trajectory for row in members]
            async with limit:
                await scorer.score(Bundle(name, task, 0, {"": Group(name, "", task, len(members), trajectories)}))

        await asyncio.gather(*(one(name, members) for name, members in groups.items()))
        for what, count in scorer.take_metrics().items():
            typer.echo(f"{what}: {count:g}", err=True)
    finally:
        scorer.close()
    return {name: [row.trajectory.rewards.get(name) for row in rows] for name in rewards}


def _show(console: Console, rows: Sequence[Rollout], columns: dict[str, list[float | None]], number: int) -> None:
    table = Table("reward", "mean", "not scored", "lowest", "highest", box=None)
    for name, values in columns.items():
        known = [v for v in values if v is not None]
        spread = [f"{sum(known) / len(known):.4f}", str(len(values) - len(known)), f"{min(known):g}", f"{max(known):g}"]
        table.add_row(escape(name), *(spread if known else ["-", str(len(values)), "-", "-"]))
    console.print(f"{len(rows)} samples")
    print_table(table, console)
    if len(columns) < 2:
        return
    (first, left), (second, right) = columns.items()
    differ = [i for i in range(len(rows)) if left[i] != right[i]]
    console.print(f"{first} and {second} differ on {len(differ)} of {len(rows)}", markup=False)
    if differ and number:
        listed = Table("row", first, second, "prompt", "completion", box=None)
        for i in differ[:number]:
            messages = rows[i].task.messages
            asked = str(messages[-1].get("content")) if messages else ""
            cells = [_shown(left[i]), _shown(right[i]), asked[-40:], rows[i].trajectory.completion_text[-60:]]
            listed.add_row(str(i + 1), *(escape(cell.replace("\n", " ")) for cell in cells))
        print_table(listed, console)


def _shown(value: float | None) -> str:
    return "not scored" if value is None else f"{value:g}"
