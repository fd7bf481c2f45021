"""A new run from an old one's state."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl.checkpoint.fork import fork
from rl.checkpoint.store import CheckpointError, CheckpointStore, write_state
from rl.config import ConfigError, load, load_resolved
from rl.tracking.jsonable import line
from rl.tracking.run_directory import RunDirectory


@pytest.fixture
def old(tmp_path: Path) -> Path:
    settings = [
        f"run_dir={tmp_path}",
        "name=old",
        "model.path=m",
        "data.sources=[{path: d.jsonl}]",
        "checkpoint.keep=9",
    ]
    with RunDirectory.create(load(None, settings)) as directory:
        for step in (2, 4):
            with CheckpointStore(directory.checkpoints).writing(step, value=0.5) as folder:
                (folder / "trainer").mkdir()
                (folder / "trainer" / "rank0.pt").write_text(f"weights {step}")
                write_state(folder, {"step": step})
        directory.metrics_path.write_text("".join(line({"step": s, "reward/mean": s / 10}) for s in range(5)))
    return tmp_path / "old"


def test_a_fork_has_the_state_and_the_metrics_up_to_it(old: Path) -> None:
    path, changes = fork(old, "2", ["name=new", "trainer.lr=0.5"])
    assert {c.key for c in changes} == {"name", "trainer.lr"}
    store = CheckpointStore(path / "checkpoints")
    latest = store.latest()
    assert latest is not None and latest.step == 2 and latest.value() == 0.5
    assert (latest.path / "trainer" / "rank0.pt").read_text() == "weights 2"
    new = RunDirectory.open(path, lock=False)
    assert [row["step"] for row in new.metrics()] == [0, 1, 2]
    assert load_resolved(new.config_path).config.trainer.lr == 0.5
    assert new.state()["forked_at"] == 2 and new.run_id != RunDirectory.open(old, lock=False).run_id
    assert [c.step for c in CheckpointStore(old / "checkpoints").all()] == [2, 4]


def test_what_a_fork_refuses(old: Path) -> None:
    with pytest.raises(ConfigError, match="a name of its own"):
        fork(old, "2", [])
    with pytest.raises(CheckpointError, match=r"no checkpoint '3'; complete ones are of steps \[2, 4\]"):
        fork(old, "3", ["name=new"])
    with pytest.raises(ConfigError, match="--force"):
        fork(old, "2", ["name=new", "tasks_per_step=3"])
    assert not (old.parent / "new").exists()
    fork(old, "2", ["name=new", "tasks_per_step=3"], force=True)
    with pytest.raises(ConfigError, match="exists"):
        fork(old, "2", ["name=new"])
