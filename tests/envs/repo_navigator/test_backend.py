"""The worker processes: killed when stuck, replaced when dead, never mixed up."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from envs.repo_navigator.backend import Answer, CachedBackend, ProcessBackend, Target
from envs.repo_navigator.jedi_backend import jedi_backend
from envs.repo_navigator.repositories import bundled_files
from envs.repo_navigator.snapshot import SnapshotStore
from envs.repo_navigator.source import read_source

STUB = """
import json, sys, time, os
for line in sys.stdin:
    q = json.loads(line)
    for row, column in q["positions"]:
        if column == 99:
            print(json.dumps({"targets": []}), flush=True); time.sleep(1000)
        if column == 98: os._exit(1)
        if column == 97:
            import resource; resource.setrlimit(resource.RLIMIT_AS, (2**28, 2**28)); x = bytearray(2**30)
        print(json.dumps({"error": str(column)}), flush=True)
"""


def all_sites(snapshot, path):
    source = read_source(snapshot.root / path)
    sites = sorted({(u.line, u.column) for n in source.names() for u in source.occurrences(n)})
    return source.text, sites


def test_stuck_dead_and_greedy_workers_are_replaced(store: SnapshotStore) -> None:
    snapshot = store.from_files({"a.py": "x = 1\n"})
    backend = jedi_backend(1, command=[sys.executable, "-c", STUB])

    def ask(*columns: int) -> list[str | None]:
        answers = asyncio.run(backend.resolve(snapshot, "a.py", "", [(1, c) for c in columns], timeout_s=1.0))
        return [a.error for a in answers]

    try:
        assert ask(1, 2) == ["1", "2"]
        assert ask(3, 99, 4) == ["3", None, "timeout"]  # what came before the hang is kept
        assert ask(5) == ["5"]
        assert ask(6, 98, 7) == ["6", "crash", "crash"]
        assert ask(97) == ["crash"]
        assert ask(8) == ["8"]
        assert backend.metrics()["timeouts"] == 1 and backend.metrics()["restarts"] == 2
    finally:
        backend.close()


def test_a_killed_worker_costs_one_answer(store: SnapshotStore, tmp_path: Path) -> None:
    snapshot = store.from_files(bundled_files("ledger"))
    text, sites = all_sites(snapshot, "ledger/book.py")
    others = set(psutil.Process().children())
    backend = jedi_backend(1, cache_dir=tmp_path / "jedi")
    try:
        before = asyncio.run(backend.resolve(snapshot, "ledger/book.py", text, sites, timeout_s=30))
        (worker,) = set(psutil.Process().children()) - others
        os.killpg(worker.pid, signal.SIGKILL)
        asyncio.run(backend.resolve(snapshot, "ledger/book.py", text, sites[:1], timeout_s=30))
        assert asyncio.run(backend.resolve(snapshot, "ledger/book.py", text, sites, timeout_s=30)) == before
    finally:
        backend.close()


def test_concurrent_answers_equal_sequential_ones(store: SnapshotStore, backend: ProcessBackend) -> None:
    one, two = store.from_files(bundled_files("ledger")), store.from_files(bundled_files("router"))
    asked = [(s, f, *all_sites(s, f)) for s in (one, two) for f in s.files]

    async def together() -> list[list[Answer]]:
        jobs = [backend.resolve(s, f, t, p, timeout_s=60) for s, f, t, p in asked]
        return await asyncio.gather(*jobs)

    sequential = [asyncio.run(backend.resolve(s, f, t, p, timeout_s=60)) for s, f, t, p in asked]
    assert asyncio.run(together()) == sequential
    inside = [t for answers in sequential for a in answers for t in a.targets if t.path]
    assert len(inside) > 100


def test_close_leaves_no_process(store: SnapshotStore, tmp_path: Path) -> None:
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    backend = jedi_backend(2, cache_dir=tmp_path / "jedi")
    snapshot = store.from_files({"a.py": "def f(): pass\nf()\n"})
    asyncio.run(backend.resolve(snapshot, "a.py", "def f(): pass\nf()\n", [(2, 0)], timeout_s=30))
    assert {p.pid for p in psutil.Process().children(recursive=True)} - before
    backend.close()
    backend.close()
    assert {p.pid for p in psutil.Process().children(recursive=True)} - before == set()
    with pytest.raises(RuntimeError, match="closed"):
        backend.submit(snapshot, "a.py", "", [(1, 0)], timeout_s=1)


def test_no_code_of_the_repository_runs(store: SnapshotStore, backend: ProcessBackend, tmp_path: Path) -> None:
    sentinel = tmp_path / "ran"
    evil = f"open({str(sentinel)!r}, 'w')\ndef f(): pass\n"
    files = {
        "evil.py": evil,
        "conftest.py": evil,
        "json/__init__.py": evil,
        "a.py": "from evil import f\nimport json\nf()\n",
    }
    snapshot = store.from_files(files)
    (snapshot.root / "fast.cpython-311-x86_64-linux-gnu.so").write_bytes(b"not even ELF")
    answers = asyncio.run(backend.resolve(snapshot, "a.py", files["a.py"], [(3, 0), (2, 7)], timeout_s=30))
    assert answers[0].targets[0].path == "evil.py"
    assert not sentinel.exists()


class Counting:
    engine = "counting-1"

    def __init__(self) -> None:
        self.asked = 0

    async def resolve(self, snapshot, path, text, positions, *, timeout_s):
        self.asked += len(positions)
        return [Answer((Target(path, line, snapshot.snapshot_id, "", "function"),)) for line, _ in positions]

    def metrics(self):
        return {}

    def close(self): ...


def test_cache_by_snapshot_in_memory_and_on_disk(store: SnapshotStore, tmp_path: Path) -> None:
    one, two = store.from_files({"a.py": "x = 1\n"}), store.from_files({"a.py": "x = 2\n"})
    inner = Counting()
    cached = CachedBackend(inner, tmp_path / "cache")

    def ask(backend: CachedBackend, snapshot) -> str:
        (answer,) = asyncio.run(backend.resolve(snapshot, "a.py", "", [(1, 0)], timeout_s=1))
        return answer.targets[0].name

    assert [ask(cached, s) for s in (one, two, one, two)] == [x.snapshot_id for x in (one, two, one, two)]
    assert inner.asked == 2
    again = CachedBackend(inner, tmp_path / "cache")
    assert ask(again, one) == one.snapshot_id and inner.asked == 2
    for file in (tmp_path / "cache").rglob("*.json"):
        file.write_text("{damaged")
    assert ask(CachedBackend(inner, tmp_path / "cache"), one) == one.snapshot_id and inner.asked == 3


def test_snapshots_are_known_by_content(tmp_path: Path) -> None:
    files = bundled_files("ledger")
    one, two = (SnapshotStore(tmp_path / x).from_files(files) for x in "ab")
    assert one.snapshot_id == two.snapshot_id and one.root != two.root
    changed = SnapshotStore(tmp_path / "a").from_files(files, overlay={"ledger/book.py": "x = 1\n"})
    assert changed.snapshot_id != one.snapshot_id
    assert (one.root / "ledger/book.py").read_text() == files["ledger/book.py"]
