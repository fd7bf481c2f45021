"""What a person sees while a run goes on: a live line in a terminal, plain lines elsewhere.

The live display exists only inside a phase and removes itself at its end, so that an error or a
summary always prints on a clean terminal.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text


class Phase:
    """One phase in progress."""

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self.name = name
        self._clock, self._began = clock, clock()
        self._done: tuple[int, int] | None = None

    def advance(self, done: int, total: int) -> None:
        """Says how far the phase is."""
        self._done = (done, total)

    @property
    def elapsed(self) -> float:
        return self._clock() - self._began

    def __str__(self) -> str:
        part = f" {self._done[0]}/{self._done[1]}" if self._done else ""
        return f"{self.name}{part} ({duration(self.elapsed)})"


class Progress:
    """Shows phases and steps.

    Args:
        quiet: show nothing.
        console: where to; stderr stays free for errors, so stdout by default.
        clock: seconds, for tests.
    """

    def __init__(
        self, *, quiet: bool = False, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._quiet = quiet
        self._console = console or Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self._clock = clock
        self._total: int | None = None
        self._first = self._done = 0
        self._began = clock()
        self._last: str | None = None
        self._phases: list[Phase] = []
        self._live: Live | None = None

    def total(self, steps: int | None, *, done: int = 0) -> None:
        """Sets the number of steps of the whole run, and how many an earlier process has done; starts the clock."""
        self._total, self._first, self._done = steps, done, done
        self._began = self._clock()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[Phase]:
        """Shows ``name`` with its elapsed time while the block runs."""
        phase = Phase(name, self._clock)
        self._phases.append(phase)
        starting = self._done == self._first
        try:
            if not self._quiet and self._console.is_terminal and self._live is None:
                self._live = Live(
                    get_renderable=self._render, console=self._console, transient=True, refresh_per_second=4
                )
                self._live.start()
            yield phase
        finally:
            self._phases.remove(phase)
            if self._live is not None and not self._phases:
                self._live.stop()
                self._live = None
        if starting and not self._quiet and self._last is None and not self._phases:
            self._console.print(Text(f"{name}: {duration(phase.elapsed)}"))

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step has ended; prints its line."""
        self._done = step
        self._last = self.describe(step, metrics)
        if not self._quiet:
            self._console.print(Text(self._last))

    def describe(self, step: int, metrics: Mapping[str, float]) -> str:
        """One line for a step."""
        of = f"/{self._total}" if self._total else ""
        parts = [f"step {step}{of}"]
        for name, label, form in (
            ("reward/mean", "reward", ".3f"),
            ("eval/accuracy", "held-out", ".3f"),
            *((("train/loss", "loss", ".4f"),) if "reward/mean" not in metrics else ()),
            ("response/tokens_mean", "length", ".1f"),
            ("throughput/tokens_per_second", "tokens/s", ".0f"),
            ("time/step", "seconds", ".1f"),
        ):
            value = metrics.get(name)
            if value is not None:
                parts.append(f"{label} {value:{form}}")
        left = self.seconds_left()
        if left is not None:
            parts.append(f"left {duration(left)}")
        return "  ".join(parts)

    def seconds_left(self) -> float | None:
        """Time to the last step at the mean speed of this process; ``None`` when unknown."""
        here = self._done - self._first
        if not self._total or here <= 0:
            return None
        return (self._clock() - self._began) / here * max(0, self._total - self._done)

    def _render(self) -> Table:
        grid = Table.grid(padding=(0, 1))
        text = " > ".join(map(str, self._phases))
        if self._last is not None or self._total:
            of = f" of {self._total}" if self._total else ""
            text = f"step {self._done + 1}{of}: {text}"
        grid.add_row(Spinner("dots"), Text(text))
        return grid


def duration(seconds: float) -> str:
    """``7 s``, ``3 min 05 s`` or ``2 h 04 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
