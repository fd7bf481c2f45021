"""The command that plants bugs: its file, its errors, and the chains it searches once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from envs.repo_navigator.backend import CachedBackend
from envs.repo_navigator.engines import make_backend
from envs.repo_navigator.repositories import open_snapshot
from envs.repo_navigator.snapshot import SnapshotStore
from envs.repo_navigator.tasks import app, planted_rows, with_ceilings


def test_planted_writes_tasks_that_can_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = CliRunner().invoke(app, ["planted", "bundled:router", str(tmp_path / "out.jsonl"), "--count", "4"])
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert rows and all(r["ceiling"]["reachable_unlimited"] > 0 for r in rows)
    for row in rows:
        assert open_snapshot(row, SnapshotStore(tmp_path / "elsewhere")).snapshot_id == row["snapshot_id"]


@pytest.mark.parametrize("place", ["sdist:nope.tar.gz", "folder:nope", "bundled:nope", "nope"])
def test_a_wrong_repository_is_one_line(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = CliRunner().invoke(app, ["planted", place, str(tmp_path / "out.jsonl")])
    assert done.exit_code == 1 and "nope" in done.output and "Traceback" not in done.output
    assert not (tmp_path / "out.jsonl").exists()


def test_chains_in_the_clean_project_are_those_with_the_bug(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path)
    backend = CachedBackend(make_backend("jedi"))
    try:
        for name in ("router", "ledger"):
            rows = planted_rows(f"bundled:{name}", store, count=8, seed=3)
            clean = open_snapshot({"repository": f"bundled:{name}"}, store)
            once = asyncio.run(with_ceilings(rows, store, backend, clean=clean))
            each = asyncio.run(with_ceilings(rows, store, backend))
            assert once == each and once
    finally:
        backend.close()
