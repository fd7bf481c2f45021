"""Checkpoints are complete or absent."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rl.checkpoint.store import CheckpointError, CheckpointStore, Retention, verify, write_state


def save(store: CheckpointStore, step: int, text: str = "weights", value: float | None = None) -> None:
    with store.writing(step, value=value) as folder:
        (folder / "trainer").mkdir()
        (folder / "trainer" / "rank0.bin").write_text(text * min(step, 9))
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
    assert [c.step for c in store.all()] == [1]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "step-000001"]


@pytest.mark.parametrize(
    ("name", "contents", "says"),
    [
        ("trainer/rank0.bin", None, "rank0.bin is missing"),
        ("trainer/rank0.bin", b"w", "rank0.bin has 1 bytes instead of 14"),
        ("controller.json", b"", "controller.json has 0 bytes"),
        ("manifest.json", None, "no manifest.json"),
        ("manifest.json", b"", "manifest.json of .* is torn"),
        ("manifest.json", b'{"format": 3', "torn"),
        ("manifest.json", b'{"format": 3}', "torn"),
        ("manifest.json", b"\xff\xfe", "torn"),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_and_named(  # RES-19, RES-29
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, contents: bytes | None, says: str
) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1)
    save(store, 2)
    victim = tmp_path / "step-000002" / name
    victim.unlink() if contents is None else victim.write_bytes(contents)
    latest = store.latest()
    assert latest is not None
    assert latest.step == 1
    assert re.search(rf"step-000002 is damaged \(.*{says}", caplog.text)
    assert [c.step for c in store.complete()] == [1]
    save(store, 3)  # neither stumbles over it nor counts or deletes it
    assert [c.step for c in store.all()] == [1, 2, 3]


def test_a_crash_between_the_renames_of_a_step_saved_again_leaves_one(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, Retention(last=1))
    save(store, 2)
    (tmp_path / "step-000002").rename(tmp_path / "step-000002.old")  # and here the process died
    latest = store.latest()
    assert latest is not None
    assert (latest.step, latest.state()) == (2, {"step": 2})
    store.prune()
    assert store.latest() is not None
    save(store, 2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "step-000002"]


@pytest.mark.parametrize(
    ("retention", "saved", "left"),
    [
        (Retention(last=1), {2: None, 4: None, 6: None}, [6]),  # RES-14
        (Retention(last=3), {9: None, 10: None, 11: None, 100: None}, [10, 11, 100]),  # RES-15: numbers, not names
        (
            Retention(last=3),
            {999_999: None, 1_000_000: None, 1_000_001: None, 2_000_000: None},
            [10**6, 10**6 + 1, 2 * 10**6],
        ),
        (Retention(last=1, best=1), {2: 0.9, 4: 0.1, 6: 0.2, 8: 0.3}, [2, 8]),  # RES-17
        # RES-18: saved every 2, measured every 3: a checkpoint has the newest value that there was, and 2 has none.
        (Retention(last=1, best=1), {2: None, 4: 0.9, 6: 0.5}, [4, 6]),
        (Retention(last=1, best=3), {2: None, 4: 0.9, 6: 0.5}, [4, 6]),
    ],
)
def test_what_is_kept(tmp_path: Path, retention: Retention, saved: dict[int, float | None], left: list[int]) -> None:
    for step, value in saved.items():  # RES-12: every save is another process, which looks at the disk
        save(CheckpointStore(tmp_path, retention), step, "w", value=value)
    os.utime(tmp_path / f"step-{left[0]:06d}")  # the newest by its time
    store = CheckpointStore(tmp_path, retention)
    store.prune()
    assert [c.step for c in store.all()] == left


def test_the_last_one_is_deleted_only_after_the_new_one_is_whole(tmp_path: Path) -> None:  # RES-11, RES-13
    store = CheckpointStore(tmp_path, Retention(last=1))
    save(store, 2)
    with pytest.raises(OSError, match="half way"), store.writing(4) as folder:
        (folder / "trainer").mkdir()
        (folder / "trainer" / "rank0.bin").write_text("one of two writers")
        raise OSError("half way")
    assert [c.step for c in store.complete()] == [2]


def test_changed_bytes_of_the_same_length_are_found_by_verify(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1)
    (tmp_path / "step-000001" / "trainer" / "rank0.bin").write_text("weightz")
    fault = verify(store.all()[0])
    assert fault is not None
    assert "checksum" in fault


def test_retention_keeps_the_newest(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, Retention(last=2))
    for step in range(1, 6):
        save(store, step)
    assert [c.step for c in store.all()] == [4, 5]


def test_another_format_is_refused_by_name(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1)
    manifest = tmp_path / "step-000001" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 3', '"format": 99'))
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


def test_best_regular_and_newest_are_kept_over_restarts(tmp_path: Path) -> None:
    values = {1: 0.5, 2: 0.9, 3: None, 4: 0.7, 5: 0.9, 6: 0.1, 7: 0.2}
    for step, value in values.items():  # a new store each time: what is on disk decides
        save(CheckpointStore(tmp_path, Retention(last=1, every=3, best=2)), step, value=value)
    store = CheckpointStore(tmp_path, Retention(last=1, every=3, best=2))
    assert [c.step for c in store.all()] == [2, 3, 5, 6, 7]
    best = store.best()
    assert best is not None
    assert best.step == 2  # of equal ones the older
    lower = CheckpointStore(tmp_path, Retention(lower_is_better=True)).best()
    assert lower is not None
    assert lower.step == 6


def test_the_newest_whole_one_is_never_deleted(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, Retention(last=1))
    save(store, 1)
    with store.writing(2) as folder:
        (folder / "weights").write_text("x" * 100)
    (tmp_path / "step-000002" / "weights").write_text("x")  # damaged
    save(store, 1)
    store.prune()
    latest = store.latest()
    assert latest is not None
    assert latest.step == 1


def test_names_find_checkpoints(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, Retention(last=5))
    for step, value in ((5, 0.2), (10, 0.8), (20, 0.1)):
        save(store, step, value=value)
    assert [store.find(name).step for name in ("latest", "best", "10", "step-000005")] == [20, 10, 10, 5]
    with pytest.raises(CheckpointError, match=r"\[5, 10, 20\]"):
        store.find("7")


def test_a_full_disk_is_known_before_and_during_the_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1)
    with pytest.raises(CheckpointError, match="full"), store.writing(2):
        raise OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 0))
    with pytest.raises(CheckpointError, match="make room"), store.writing(3):
        pass
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["latest", "step-000001"]
