"""Writes what a run measures: `metrics.jsonl`, sampled rollouts, plots, and the sinks asked for.

A fault of a sink or of plotting never ends a run: it is counted, logged once, and shown in the summary. A fault
of the run directory itself (a full disk) does end it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rl.config import Config
from rl.tracking.jsonable import line, write_atomic
from rl.tracking.plots import draw_plots
from rl.tracking.run_directory import RunDirectory
from rl.tracking.samples import sample_rows
from rl.tracking.sinks import Sink, open_sinks
from rl.types import Bundle

log = logging.getLogger(__name__)


class Tracker:
    """The only writer of a run's metrics. A context manager.

    Args:
        directory: owned by this process.

    Raises:
        ConfigError: a sink's package or key is missing.
    """

    def __init__(self, directory: RunDirectory, config: Config) -> None:
        self.directory = directory
        self._all, self._config = config, config.tracking
        self.failures: dict[str, int] = {}
        """Failed calls by sink."""
        self._closed = False
        self._sinks: list[Sink] = open_sinks(directory, config)
        self._file = open(directory.metrics_path, "a", encoding="utf-8")  # noqa: SIM115  # closed by close()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Appends one line and flushes it. Values that are not finite are written as null and counted."""
        finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        bad = [name for name in metrics if name not in finite]
        if bad:
            log.warning("step %d: not finite: %s", step, ", ".join(bad))
            finite["tracking/nonfinite"] = float(len(bad))
        if self.failures:
            finite["tracking/failures"] = float(sum(self.failures.values()))
        self._file.write(line({"step": step, "time": time.time(), **finite, **dict.fromkeys(bad)}))
        self._file.flush()
        for sink in self._sinks:
            self._guarded(sink.name, lambda sink=sink: sink.log(step, finite))  # type: ignore[misc]
        if self._config.plots and "eval/accuracy" in finite:
            self._guarded("plots", lambda: draw_plots(self.directory))

    def rollouts(self, step: int, bundles: Sequence[Bundle], purpose: str = "train") -> None:
        """Saves some trajectories to ``rollouts/step_000012.jsonl``; those of evaluations to ``eval_000012.jsonl``."""
        every = self._config.rollouts_every
        if every <= 0 or (purpose != "eval" and step % every):
            return
        rows = sample_rows(step, bundles, purpose, self._config.rollouts_per_step)
        prefix = "step" if purpose == "train" else purpose
        write_atomic(self.directory.path / "rollouts" / f"{prefix}_{step:06d}.jsonl", "".join(map(line, rows)))

    def rewind(self, step: int) -> None:
        """The run goes on from ``step``: later lines are put aside, and sinks are opened again as by a resume."""
        self._file.close()
        for sink in self._sinks:
            self._guarded(sink.name, lambda sink=sink: sink.close({}, failed=False))  # type: ignore[misc]
        self.directory.trim_metrics(step)
        self._sinks = open_sinks(self.directory, self._all)
        self._file = open(self.directory.metrics_path, "a", encoding="utf-8")  # noqa: SIM115

    def close(self, summary: Mapping[str, Any] | None = None, *, failed: bool = False) -> None:
        """Draws the last plots and ends the sinks. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._file.close()
        if self._config.plots:
            self._guarded("plots", lambda: draw_plots(self.directory))
        for sink in self._sinks:
            self._guarded(sink.name, lambda sink=sink: sink.close(summary or {}, failed=failed))  # type: ignore[misc]
        self.directory.update_state(tracker_failures=self.failures)

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self.close(failed=kind is not None)

    def _guarded(self, name: str, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:
            self.failures[name] = self.failures.get(name, 0) + 1
            if self.failures[name] == 1:
                log.warning("%s failed; the run goes on and counts further failures: %s", name, error)
