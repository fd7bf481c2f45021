"""What the tracker writes, and that no sink can end a run."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from rl.config import ConfigError, load
from rl.tracking.run_directory import RunDirectory
from rl.tracking.tracker import Tracker
from rl.types import SOLUTION, Bundle, Finish, Group, PolicyVersion, Segment, Task, Trajectory, VersionSpan


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    resolved = load(None, ("name=t",))
    with RunDirectory.create(resolved) as directory:
        yield directory, resolved.config


def bundle(task_id: str, samples: int) -> Bundle:
    task = Task(task_id, ({"role": "user", "content": "2+2?"},), {"answer": "4", "bad": float("nan")}, "sums")
    rows = [
        Trajectory(
            "r", f"{task_id}#0", SOLUTION, i, 7,
            [Segment(np.array([5, 6], np.int32), np.array([False, True]), np.array([0, -0.5], np.float32),
                     (VersionSpan(PolicyVersion(0, 3), 1, 2),))],
            (*task.messages, {"role": "assistant", "content": f"four \ud800 {i}"}),
            Finish.STOP, prompt_messages=1, rewards={"a": 1.0, "b": None}, reward=1.0,
        )
        for i in range(samples)
    ]  # fmt: skip
    return Bundle(f"{task_id}#0", task, 0, {SOLUTION: Group(f"{task_id}#0", SOLUTION, task, samples, rows)})


def lines(path):
    return [json.loads(text, parse_constant=pytest.fail) for text in path.read_text().splitlines()]


def test_not_finite_is_null_and_counted(run):
    directory, config = run
    with Tracker(directory, config) as tracker:
        tracker.log(1, {"reward/mean": np.float32(0.5), "policy/kl": math.nan, "gap/max": -math.inf})
        row = lines(directory.metrics_path)[0]  # readable at once, before the file is closed
    assert row["reward/mean"] == 0.5 and row["policy/kl"] is None and row["gap/max"] is None
    assert row["tracking/nonfinite"] == 2 and row["step"] == 1


def test_rollouts_can_be_read_and_scored_again(run):
    directory, config = run
    with Tracker(directory, config) as tracker:
        tracker.rollouts(12, [bundle("x", 6), bundle("y", 6)], purpose="train")
        tracker.rollouts(12, [bundle("z", 1)], purpose="eval")
    rows = lines(directory.path / "rollouts" / "step_000012.jsonl")
    assert [(r["task_id"], r["sample_index"]) for r in rows[:4]] == [("x", 0), ("y", 0), ("x", 1), ("y", 1)]
    assert len(rows) == config.tracking.rollouts_per_step == 8
    row = rows[0]
    assert row["columns"] == {"answer": "4", "bad": None} and row["completion"][0]["content"] == "four \ud800 0"
    assert row["rewards"] == {"a": 1.0, "b": None} and row["finish"] == "stop" and row["version"] == [0, 3]
    assert row["segments"][0]["token_ids"] == [5, 6] and row["segments"][0]["loss_mask"] == [0, 1]
    assert row["response_tokens"] == 1
    assert len(lines(directory.path / "rollouts" / "eval_000012.jsonl")) == 1


def test_rollouts_every(run):
    directory, config = run
    config.tracking.rollouts_every = 5
    with Tracker(directory, config) as tracker:
        for step in range(1, 11):
            tracker.rollouts(step, [bundle("x", 1)])
    assert sorted(p.name for p in (directory.path / "rollouts").iterdir()) == ["step_000005.jsonl", "step_000010.jsonl"]


def test_failing_sink_is_counted_and_never_raises(run):
    directory, config = run

    class Broken:
        name = "broken"

        def log(self, step, metrics):
            raise RuntimeError("offline")

        def close(self, summary, *, failed):
            raise RuntimeError("offline")

    tracker = Tracker(directory, config)
    tracker._sinks.append(Broken())
    tracker.log(1, {"reward/mean": 1.0})
    tracker.log(2, {"reward/mean": 1.0})
    tracker.close()
    assert directory.state()["tracker_failures"] == {"broken": 3}
    assert lines(directory.metrics_path)[1]["tracking/failures"] == 1


def test_plots_are_images(run):
    directory, config = run
    with Tracker(directory, config) as tracker:
        for step in range(3):
            tracker.log(
                step, {"reward/mean": 0.1 * step, "policy/entropy": 1.0, "eval/accuracy": 0.2, "gap/mean": 0.01}
            )
    names = sorted(p.name for p in (directory.path / "plots").iterdir())
    assert names == ["gap.png", "policy.png", "reward.png"]
    assert (directory.path / "plots" / "reward.png").read_bytes().startswith(b"\x89PNG")


def test_wandb_without_key_names_the_variable(run, monkeypatch):
    directory, config = run
    pytest.importorskip("wandb")
    config.tracking.wandb, config.tracking.wandb_key_env = True, "MY_KEY"
    monkeypatch.delenv("MY_KEY", raising=False)
    with pytest.raises(ConfigError, match="MY_KEY is not set"):
        Tracker(directory, config)


def test_wandb_offline_keeps_one_id_over_two_resumes(run, monkeypatch):
    """ORCH-14: a restart goes on in the same tracking run; another folder has another."""
    pytest.importorskip("wandb")
    directory, config = run
    monkeypatch.setenv("WANDB_API_KEY", "canary-5512")
    config.tracking.wandb, config.tracking.wandb_mode, config.tracking.plots = True, "offline", False
    ids = set()
    for step in range(3):
        with Tracker(directory, config) as tracker:
            tracker.log(step, {"reward/mean": 0.5})
            assert not tracker.failures
        ids.add(directory.state()["wandb_run_id"])
    assert len(ids) == 1
    files = [p for p in (directory.path / "wandb").rglob("*.wandb")]
    assert files and all(ids.copy().pop() in p.name for p in files)
    for file in directory.path.rglob("*"):
        assert not file.is_file() or b"canary-5512" not in file.read_bytes(), file
    with RunDirectory.create(load(None, ("name=other",))) as other:
        with Tracker(other, config):
            pass
        assert other.state()["wandb_run_id"] not in ids


def test_tensorboard_gets_the_same_names(run):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    directory, config = run
    config.tracking.tensorboard = True
    with Tracker(directory, config) as tracker:
        tracker.log(4, {"reward/mean": 0.25})
        assert not tracker.failures
    events = reader.EventAccumulator(str(directory.path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("reward/mean")] == [(4, 0.25)]
