"""However a run ends, it says so and leaves no process behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import torch

from rl.training.state import read_weights
from tests.stack.processes import Started, wait_for_none
from tests.stack.runs import hone, make_recipe, metrics, without_times

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]


@pytest.fixture
def start() -> Iterator[Callable[..., Started]]:
    """Starts runs, and ends what a failed test left going."""
    runs: list[Started] = []

    def begin(folder: Path, *arguments: str) -> Started:
        runs.append(Started(folder, "train", *arguments))
        return runs[-1]

    yield begin
    for run in runs:
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGKILL)
            run.process.wait()


Start = Callable[..., Started]


def ignores_ended_children(pid: int) -> bool:
    """Whether SIGCHLD is ignored, so that every child seems to have succeeded."""
    status = Path(f"/proc/{pid}/status").read_text()
    ignored = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn")), 16)
    return bool(ignored >> (signal.SIGCHLD - 1) & 1)


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_everything(tmp_path: Path, start: Start, sign: signal.Signals) -> None:
    started = start(tmp_path, str(make_recipe(tmp_path)), "rollout.engine=hf", "stop.steps=1000")
    started.wait_for_step(2)
    started.process.send_signal(sign)
    text = started.end()
    assert started.process.returncode != 0
    assert wait_for_none(started.mark) == []
    if sign != signal.SIGKILL:
        assert "Traceback" not in text, text[-3000:]
    if sign == signal.SIGTERM:  # the step in progress was finished and saved
        assert started.process.returncode == 143
        last = metrics(started.run)[-1]["step"]
        assert (started.run / "checkpoints" / f"step-{last:06d}" / "manifest.json").is_file()
        hone(tmp_path, "resume", "runs/tiny", f"stop.steps={last + 1}")
        assert metrics(started.run)[-1]["step"] == last + 1
    left = [p for p in Path("/dev/shm").glob("hone-*") if started.mark in p.name]
    assert left == []


def test_a_run_saves_and_ends_before_its_time_is_up(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    end = datetime.now().astimezone() + timedelta(seconds=90)
    settings = ("rollout.engine=hf", "stop.steps=100000", f"stop.by='{end.isoformat()}'", "checkpoint.at_end=false")
    done = hone(tmp_path, "train", str(recipe), *settings, check=False)
    assert done.returncode == 143 and "no time for another step" in done.stdout, done.stdout + done.stderr
    last = metrics(tmp_path / "runs" / "tiny")[-1]["step"]
    saved = tmp_path / "runs" / "tiny" / "checkpoints" / f"step-{last:06d}" / "manifest.json"
    assert last > 0 and saved.stat().st_mtime < end.timestamp()


def test_a_killed_engine_is_replaced_and_counted(tmp_path: Path, start: Start) -> None:
    started = start(tmp_path, str(make_recipe(tmp_path)), "stop.steps=20")
    started.wait_for_step(2)
    for worker in ("rollout-0", "trainer-0"):
        assert not ignores_ended_children(started.worker(worker)), worker
    os.kill(started.worker("rollout-0"), signal.SIGKILL)
    text = started.end(500)
    assert started.process.returncode == 0, text[-3000:]
    rows = metrics(started.run)
    assert [r["step"] for r in rows] == list(range(21))
    assert rows[-1]["rollout/restarts"] == 1
    assert max(row.get("gap/max", 0.0) for row in rows) < 1e-3  # the new engine was given the current weights
    assert wait_for_none(started.mark) == []


def test_a_killed_trainer_ends_the_run_with_a_message(tmp_path: Path, start: Start) -> None:
    recipe = str(make_recipe(tmp_path))
    started = start(tmp_path, recipe, "rollout.engine=hf", "stop.steps=1000", "trainer.max_restarts=0")
    started.wait_for_step(2)
    os.kill(started.worker("trainer-0"), signal.SIGKILL)
    text = started.end()
    assert started.process.returncode != 0
    assert "trainer rank 0" in text
    assert wait_for_none(started.mark) == []


def test_a_killed_trainer_goes_on_from_the_checkpoint_as_if_nothing_had_been(tmp_path: Path, start: Start) -> None:
    settings = ["rollout.engine=hf", "deterministic=true", "samples_per_task=4", "tasks_per_step=2", "stop.steps=9"]
    settings += ["checkpoint.every=4", "checkpoint.keep=9"]
    recipe = str(make_recipe(tmp_path))
    started = start(tmp_path, recipe, *settings)
    started.wait_for_step(5)
    os.kill(started.worker("trainer-0"), signal.SIGKILL)
    text = started.end(500)
    assert started.process.returncode == 0, text[-3000:]
    hone(tmp_path, "train", recipe, "name=straight", *settings)
    found, wanted = ([dict(r) for r in without_times(metrics(tmp_path / "runs" / n))] for n in ("tiny", "straight"))
    assert found[-1].pop("trainer/restarts") == 1 and wanted[-1].pop("trainer/restarts") == 0
    assert [row["step"] for row in found] == list(range(10))
    for a, b in zip(found, wanted, strict=True):
        assert {k: v for k, v in a.items() if k != "trainer/restarts"} == {
            k: v for k, v in b.items() if k != "trainer/restarts"
        }
    last = Path("checkpoints", "step-000009", "trainer")
    a, b = (read_weights(tmp_path / "runs" / name / last) for name in ("tiny", "straight"))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert wait_for_none(started.mark) == []


def test_a_reward_that_raises_ends_the_run_with_its_name(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    (tmp_path / "reward.py").write_text("def letters(completions, **_):\n    return 1 / 0\n")
    done = hone(tmp_path, "train", str(recipe), "rollout.engine=hf", "eval.at_start=false", check=False)
    assert done.returncode != 0
    assert "letters" in done.stdout + done.stderr
    assert "ZeroDivisionError" in done.stdout + done.stderr


EXPLODES = '''
from rl.objectives.base import TokenLoss

def explode(batch):
    """A loss that is infinite from the second step on."""
    scale = float("inf") if batch.step > 1 else 1.0
    return TokenLoss(loss=-batch.advantages * batch.logprobs * scale)
'''


def test_gradients_that_stay_infinite_end_the_run_and_the_batch_can_be_replayed(tmp_path: Path) -> None:
    recipe = str(make_recipe(tmp_path))
    (tmp_path / "loss.py").write_text(EXPLODES)
    settings = ["rollout.engine=hf", "samples_per_task=4", "tasks_per_step=2", "trainer.max_skipped_steps=2"]
    settings += ["algorithm.policy_loss=loss.py:explode", "stop.steps=9", "eval.at_start=false"]
    done = hone(tmp_path, "train", recipe, *settings, check=False)
    assert done.returncode == 1 and "hone run replay" in done.stderr and "Traceback" not in done.stderr
    run = tmp_path / "runs" / "tiny"
    assert [row["step"] for row in metrics(run)] == [1, 2]
    assert metrics(run)[1]["train/skipped_updates"] == 1
    again = hone(tmp_path, "run", "replay", "runs/tiny", "--step", "3")
    assert "train/skipped_updates" in again.stdout and "every row" in again.stdout
    assert hone(tmp_path, "run", "replay", "runs/tiny", "--step", "2", check=False).returncode == 2
    assert [row["step"] for row in metrics(run)] == [1, 2]
