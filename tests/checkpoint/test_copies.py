"""Copies of checkpoints on a real S3 server and in memory: complete or absent, and enough to resume."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from rl.checkpoint.copies import Copies, fetch, list_copies, open_place
from rl.checkpoint.store import CheckpointError, CheckpointStore, Retention, verify
from rl.config.errors import ConfigError


def make_run(folder: Path, steps: range, *, keep: int = 3) -> CheckpointStore:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text("name: mine\n")
    (folder / "state.json").write_text(json.dumps({"run_id": "mine-1"}))
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')
    (folder / "files").mkdir(exist_ok=True)
    (folder / "files" / "reward.py").write_text("x = 1\n")
    (folder / "logs").mkdir(exist_ok=True)
    (folder / "logs" / "big.log").write_text("not copied")
    store = CheckpointStore(folder / "checkpoints", Retention(keep))
    for step in steps:
        with store.writing(step, value=float(step)) as place:
            (place / "trainer").mkdir()
            (place / "trainer" / "weights.pt").write_bytes(os.urandom(1000) + bytes([step]))
            (place / "controller.json").write_text("{}")
    return store


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """An S3 server on loopback."""
    from moto.server import ThreadedMotoServer

    started = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    started.start()
    host, port = started.get_host_and_port()
    yield f"http://{host}:{port}"
    started.stop()


@pytest.fixture(params=["s3", "memory", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "memory":
        return f"memory://{tmp_path.name}/runs"
    if request.param == "file":
        return f"file://{tmp_path}/elsewhere/runs"
    monkeypatch.setenv("AWS_ENDPOINT_URL", request.getfixturevalue("server"))
    for name, value in (("ACCESS_KEY_ID", "a"), ("SECRET_ACCESS_KEY", "b"), ("DEFAULT_REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    fsspec.filesystem("s3").clear_instance_cache()
    fsspec.filesystem("s3").mkdir(tmp_path.name.replace("_", "-").lower())
    return f"s3://{tmp_path.name.replace('_', '-').lower()}/runs"


def test_what_is_copied_comes_back_whole(place: str, tmp_path: Path) -> None:
    store = make_run(tmp_path / "mine", range(1, 4))
    copies = Copies(place, tmp_path / "mine", Retention(2))
    copies.update(store)
    fs, root = open_place(f"{place}/mine")
    assert [copy.step for copy in list_copies(fs, root)] == [2, 3]
    assert not any("logs" in name for name in fs.find(root))
    back = fetch(f"{place}/mine", tmp_path / "other")
    assert back == tmp_path / "other" / "mine" and (back / "files" / "reward.py").is_file()
    latest = CheckpointStore(back / "checkpoints").latest()
    assert latest is not None and latest.step == 3 and verify(latest) is None
    assert latest.manifest() == store.find("3").manifest()
    assert fetch(f"{place}/mine", tmp_path / "other") == back  # as new as the copy: kept


def test_a_copy_without_its_manifest_is_none_and_a_damaged_one_is_passed_over(place: str, tmp_path: Path) -> None:
    store = make_run(tmp_path / "mine", range(1, 4))
    Copies(place, tmp_path / "mine", Retention(3)).update(store)
    fs, root = open_place(f"{place}/mine")
    fs.rm_file(f"{root}/checkpoints/step-000003/manifest.json")
    fs.pipe_file(f"{root}/checkpoints/step-000002/trainer/weights.pt", b"damaged")
    fs.invalidate_cache()
    back = fetch(f"{place}/mine", tmp_path / "other")
    latest = CheckpointStore(back / "checkpoints").latest()
    assert latest is not None and latest.step == 1
    Copies(place, tmp_path / "mine", Retention(3)).update(store)  # what is lacking is sent again
    fs.invalidate_cache()
    assert [copy.step for copy in list_copies(fs, root)] == [1, 2, 3]


def test_faults_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Protocol not known"):
        Copies("nowhere://x", tmp_path)
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        fetch(f"memory://{tmp_path.name}/none", tmp_path)
    make_run(tmp_path / "mine", range(1, 2))
    Copies(f"file://{tmp_path}/there", tmp_path / "mine").update(CheckpointStore(tmp_path / "mine" / "checkpoints"))
    (tmp_path / "here" / "mine").mkdir(parents=True)
    (tmp_path / "here" / "mine" / "state.json").write_text('{"run_id": "another"}')
    with pytest.raises(CheckpointError, match="another run"):
        fetch(f"file://{tmp_path}/there/mine", tmp_path / "here")
