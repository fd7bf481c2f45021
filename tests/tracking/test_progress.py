"""Progress and summary as text."""

from __future__ import annotations

import asyncio
import io
from dataclasses import dataclass

import pytest
from rich.console import Console

from rl.config import load
from rl.tracking.progress import Progress, duration
from rl.tracking.run_directory import RunDirectory
from rl.tracking.summary import summary_rows


def make(terminal: bool = False, **kwargs):
    out = io.StringIO()
    now = [0.0]
    console = Console(file=out, force_terminal=terminal, width=100, color_system=None)
    return Progress(console=console, clock=lambda: now[0], **kwargs), out, now


def test_one_plain_line_a_step_without_a_terminal():
    progress, out, now = make()
    with progress.phase("starting Ray"):
        now[0] = 3
    progress.total(10)
    for step in (1, 2):
        with progress.phase("generating"):
            now[0] += 10
        progress.step(step, {"reward/mean": 0.5, "throughput/tokens_per_second": 120.4})
    assert out.getvalue().splitlines()[0] == "starting Ray: 3 s"
    assert out.getvalue().splitlines()[-2:] == [
        "step 1/10  reward 0.500  tokens/s 120  left 1 min 30 s",
        "step 2/10  reward 0.500  tokens/s 120  left 1 min 20 s",
    ]
    assert "\x1b" not in out.getvalue()


def test_time_left_counts_only_steps_of_this_process():
    progress, _, now = make()
    progress.total(100, done=90)
    now[0] = 5.0
    progress.step(91, {})
    assert progress.seconds_left() == 45.0


def test_live_display_in_a_terminal_ends_with_an_error():
    progress, out, _ = make(terminal=True)

    async def work():
        with progress.phase("evaluating") as phase:
            phase.advance(3, 8)
            assert progress._live is not None
            progress._live.refresh()
            await asyncio.sleep(0)
            raise RuntimeError("x")

    with pytest.raises(RuntimeError):
        asyncio.run(work())
    assert progress._live is None
    assert "evaluating 3/8" in out.getvalue() and out.getvalue().rstrip().endswith("\x1b[2K")


def test_quiet_prints_nothing():
    progress, out, _ = make(quiet=True)
    with progress.phase("a"):
        progress.step(1, {"reward/mean": 1.0})
    assert out.getvalue() == ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(7.4, "7 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (7440, "2 h 04 min")]
)
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_summary(tmp_path, monkeypatch):
    @dataclass
    class Totals:
        step: int = 2
        tokens_generated: int = 1234
        tokens_trained: int = 1200
        seconds: float = 61

    monkeypatch.chdir(tmp_path)
    with RunDirectory.create(load(None, ("name=s",))) as run:
        run.metrics_path.write_text(
            '{"step": 0, "eval/accuracy": 0.125}\n{"step": 1, "reward/mean": 0.2, "time/generate": 2}\n'
            '{"step": 2, "reward/mean": 0.4, "time/generate": 3, "eval/accuracy": 0.5}\n'
        )
        rows = dict(summary_rows(run, reason="stop.steps = 2 reached", counters=Totals()))
    assert rows["ended"] == "stop.steps = 2 reached" and rows["steps"] == "2 in 1 min 01 s"
    assert rows["held-out"] == "0.125 (step 0) -> 0.500 (step 2), best 0.500"
    assert rows["time"] == "generate 5 s" and rows["next"].endswith("stop.steps=4")
