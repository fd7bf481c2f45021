"""Checkpoints are complete or absent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rl.checkpoint.store import CheckpointError, CheckpointStore, verify, write_state


def save(store: CheckpointStore, step: int, text: str = "weights") -> None:
    with store.writing(step) as folder:
        (folder / "trainer").mkdir()
        (folder / "trainer" / "rank0.bin").write_text(text * step)
        write_state(folder, {"step": step})


def test_saved_state_comes_back_and_latest_points_at_it(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 3)
    latest = store.latest()
    assert latest is not None
    assert latest.step == 3
    assert latest.state() == {"step": 3}
    assert (tmp_path / "latest").read_text() == "step-000003\n"
    assert verify(latest) is None


def test_an_error_while_writing_leaves_the_previous_one(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1)
    with pytest.raises(OSError, match="full"), store.writing(2) as folder:
        (folder / "half").write_text("x")
        raise OSError("disk full")
    assert [c.step for c in store.list()] == [1]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "step-000001"]


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, damage: str) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1)
    save(store, 2)
    victim = tmp_path / "step-000002" / "trainer" / "rank0.bin"
    if damage == "missing":
        victim.unlink()
    else:
        victim.write_text("w")
    latest = store.latest()
    assert latest is not None
    assert latest.step == 1


def test_changed_bytes_of_the_same_length_are_found_by_verify(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1)
    (tmp_path / "step-000001" / "trainer" / "rank0.bin").write_text("weightz")
    fault = verify(store.list()[0])
    assert fault is not None
    assert "checksum" in fault


def test_retention_keeps_the_newest(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for step in range(1, 6):
        save(store, step)
    assert [c.step for c in store.list()] == [4, 5]


def test_another_format_is_refused_by_name(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1)
    manifest = tmp_path / "step-000001" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 99'))
    with pytest.raises(CheckpointError, match="format 99"):
        store.latest()


def test_kill_in_the_middle_of_a_write_leaves_the_previous_one(tmp_path: Path) -> None:
    save(CheckpointStore(tmp_path), 1)
    script = (
        "import os, sys, signal; from pathlib import Path; from rl.checkpoint.store import CheckpointStore\n"
        "store = CheckpointStore(Path(sys.argv[1]))\n"
        "with store.writing(2) as folder:\n"
        "    (folder / 'half').write_text('x'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], env=os.environ, check=False)
    assert done.returncode == -9
    store = CheckpointStore(tmp_path)
    latest = store.latest()
    assert latest is not None
    assert latest.step == 1
    save(store, 2)
    assert not list(tmp_path.glob("tmp-*"))
