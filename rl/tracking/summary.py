"""The last words of a run: why it ended, what it achieved, where the files are, what to do next."""

from __future__ import annotations

from typing import Protocol

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rl.tracking.plots import series
from rl.tracking.progress import duration
from rl.tracking.run_directory import RunDirectory
from rl.tracking.tables import print_table

LABELS = (
    ("reward", "reward/mean", max),
    ("held-out", "eval/accuracy", max),
    ("held-out loss", "eval/loss", min),
)
PHASES = ("time/generate", "time/score", "time/train", "time/sync")


class Totals(Protocol):
    """What the summary reads of a run's counters."""

    step: int
    tokens_generated: int
    tokens_trained: int
    seconds: float


def summarise(
    directory: RunDirectory,
    *,
    reason: str,
    counters: Totals,
    console: Console | None = None,
    following: str | None = None,
) -> None:
    """Prints the summary of a finished run, from its metrics file.

    Args:
        following: the command to try next; to resume, when not given.
    """
    table = Table.grid(padding=(0, 2))
    for label, text in summary_rows(directory, reason=reason, counters=counters, following=following):
        table.add_row(Text(label, style="bold"), Text(text))
    out = console or Console(highlight=False, soft_wrap=True)
    out.print()
    print_table(table, out)


def summary_rows(
    directory: RunDirectory, *, reason: str, counters: Totals, following: str | None = None
) -> list[tuple[str, str]]:
    """The summary as (label, text)."""
    metrics = directory.metrics()
    rows = [
        ("ended", reason),
        ("steps", f"{counters.step} in {duration(counters.seconds)}"),
    ]
    if counters.tokens_generated:
        rows.append(("tokens", f"{counters.tokens_generated:,} generated, {counters.tokens_trained:,} trained"))
    phases = {name.removeprefix("time/"): sum(series(metrics, name)[1]) for name in PHASES}
    spent = [f"{name} {duration(seconds)}" for name, seconds in phases.items() if seconds > 0]
    if spent:
        rows.append(("time", ", ".join(spent)))
    for label, name, best in LABELS:
        steps, values = series(metrics, name)
        if values:
            rows.append(
                (
                    label,
                    f"{values[0]:.3f} (step {steps[0]}) -> {values[-1]:.3f} (step {steps[-1]}), "
                    f"best {best(values):.3f}",
                )
            )
    failures = directory.state().get("tracker_failures") or {}
    if failures:
        rows.append(("tracking", ", ".join(f"{name} failed {n} times" for name, n in failures.items())))
    rows.append(("files", str(directory.path)))
    plot = directory.path / "plots" / "reward.png"
    if plot.is_file():
        rows.append(("plot", str(plot)))
    rows.append(("next", following or f"hone resume {directory.path} stop.steps={2 * max(counters.step, 1)}"))
    return rows
