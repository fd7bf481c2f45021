"""A run's curves as PNG files, drawn from `metrics.jsonl`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl.tracking.run_directory import RunDirectory

PLOTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "reward": (("reward/mean", "eval/accuracy"),),
    "policy": (("policy/entropy",), ("policy/kl", "policy/ref_kl"), ("response/tokens_mean",)),
    "gap": (("gap/mean",), ("gap/max",)),
}
"""File name -> panels -> metrics."""


def draw_plots(directory: RunDirectory) -> list[Path]:
    """Draws ``plots/*.png``; a plot with no data is left out. Returns the files."""
    rows = directory.metrics()
    folder = directory.path / "plots"
    drawn = []
    for name, panels in PLOTS.items():
        shown = [[metric for metric in panel if series(rows, metric)[0]] for panel in panels]
        shown = [panel for panel in shown if panel]
        if shown:
            drawn.append(_draw(folder / f"{name}.png", rows, shown))
    return drawn


def series(rows: Sequence[dict[str, Any]], metric: str) -> tuple[list[int], list[float]]:
    """Steps and values of a metric; lines without it or with null are left out."""
    found = [(row["step"], row[metric]) for row in rows if row.get(metric) is not None]
    return [step for step, _ in found], [value for _, value in found]


def _draw(path: Path, rows: Sequence[dict[str, Any]], panels: Sequence[Sequence[str]]) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 1.2 + 2.6 * len(panels)), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, panel in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True):
        for metric in panel:
            steps, values = series(rows, metric)
            axes.plot(steps, values, marker="o" if metric.startswith("eval/") else None, label=metric)
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
        axes.legend(loc="best")
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        figure.savefig(scratch, format="png", dpi=110)
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)
    return path
