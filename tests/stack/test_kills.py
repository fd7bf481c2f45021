"""A run that is killed again and again is the run that was never killed."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
import torch

from rl.training.state import read_weights
from tests.stack.processes import Started, wait_for_none
from tests.stack.runs import hone, make_recipe, metrics, without_times

pytestmark = [pytest.mark.stack, pytest.mark.timeout(3000)]


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_kills_at_any_moment_lose_nothing(tmp_path: Path, kills: int) -> None:
    recipe, steps = str(make_recipe(tmp_path)), 3 * kills
    settings = ["rollout.engine=hf", "deterministic=true", "samples_per_task=4", "tasks_per_step=2"]
    settings += [f"stop.steps={steps}", "checkpoint.every=1", "eval.at_start=false", "eval.at_end=false"]
    hone(tmp_path, "train", recipe, "name=straight", *settings, timeout=1200)
    draw, run = random.Random(0), tmp_path / "runs" / "tiny"
    for number in range(kills):
        resumable = any((run / "checkpoints").glob("step-*/manifest.json"))
        verb = ("resume", str(run)) if resumable else ("train", recipe, "--overwrite", *settings)
        started = Started(tmp_path, *verb)
        if number % 4:  # else at a moment of the start
            started.wait_for_step(1 + max((row["step"] for row in metrics(run)), default=0) if resumable else 1)
        time.sleep(draw.uniform(0, 2.5))  # in a step, in the middle of a save, or between
        started.kill()
        assert wait_for_none(started.mark) == []
    last = Started(tmp_path, "resume", str(run))
    text = last.end(1200)
    assert last.process.returncode == 0, text[-3000:]
    found, wanted = (without_times(metrics(tmp_path / "runs" / name)) for name in ("tiny", "straight"))
    assert found == wanted
    place = Path("checkpoints", f"step-{steps:06d}", "trainer")
    a, b = (read_weights(tmp_path / "runs" / name / place) for name in ("tiny", "straight"))
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
