"""Speed and memory of RepoNavigator's tool, on a real project.

    python benchmarks/environments.py sdist:django-5.2.8.tar.gz --sites 150 --episodes 256

Prints JSON: latency of jumps without and with the cache, wall time of many episodes at once,
memory of the resolver processes. Goals on two cores: cached median under 1 ms; uncached on Django
median under 40 ms and p99 under 2 s; 256 episodes without a timeout in under 2 GB of workers.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from envs.base import Action, ToolCall
from envs.checking import count_tokens
from envs.episode import play
from envs.repo_navigator.backend import CachedBackend
from envs.repo_navigator.engines import make_backend
from envs.repo_navigator.environment import RepoNavigator
from envs.repo_navigator.jedi_backend import jedi_backend
from envs.repo_navigator.jump import JumpTool
from envs.repo_navigator.repositories import open_snapshot
from envs.repo_navigator.snapshot import MAX_FILE_BYTES, Snapshot, SnapshotStore
from envs.repo_navigator.source import read_source
from rl.types import Task


def sites_of(snapshot: Snapshot, number: int, seed: int) -> list[tuple[str, str, int]]:
    """Random uses of names, at most three a file."""
    rng = random.Random(seed)
    files = [f for f in snapshot.files if (snapshot.root / f).stat().st_size < MAX_FILE_BYTES]
    found: list[tuple[str, str, int]] = []
    while len(found) < number:
        path = rng.choice(files)
        source = read_source(snapshot.root / path)
        for name in rng.sample(sorted(source.names()), min(3, len(source.names()))):
            found.append((name, path, rng.randint(1, len(source.occurrences(name)))))
    return found[:number]


def quantiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    picks = {"median": 0.5, "p90": 0.9, "p99": 0.99}
    named = {k: ordered[min(int(q * len(ordered)), len(ordered) - 1)] * 1e3 for k, q in picks.items()}
    return {f"{k}_ms": round(v, 2) for k, v in {**named, "max": ordered[-1] * 1e3}.items()}


async def jumps(tool: JumpTool, sites: list[tuple[str, str, int]]) -> tuple[list[float], Counter[str]]:
    times, statuses = [], Counter[str]()
    for name, path, index in sites:
        started = time.perf_counter()
        result = await tool.jump(name, path, index, count_tokens=count_tokens)
        times.append(time.perf_counter() - started)
        statuses[result.status.value] += 1
    return times, statuses


async def episodes(backend: CachedBackend, columns: dict[str, Any], sites: list[Any], number: int) -> dict[str, Any]:
    """Each asks eight questions of its own and answers."""

    async def one(i: int) -> Any:
        rng = random.Random(i)
        left = 8

        async def policy(messages: Any, tools: Any) -> Action:
            nonlocal left
            left -= 1
            if left < 0:
                return Action("\\boxed{a.py::f}")
            name, path, index = rng.choice(sites)
            return Action("", (ToolCall("jump", {"symbol": name, "file_path": path, "index": index}, "call_0"),))

        task = Task(str(i), ({"role": "user", "content": "Something is wrong."},), columns)
        return await play(RepoNavigator(backend=backend), task, policy, context=10**6)

    lag = 0.0

    async def heartbeat() -> None:
        nonlocal lag
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.01)
            lag = max(lag, time.perf_counter() - before - 0.01)

    beat = asyncio.create_task(heartbeat())
    started = time.perf_counter()
    traces = await asyncio.gather(*(one(i) for i in range(number)))
    wall = time.perf_counter() - started
    beat.cancel()
    info: Counter[str] = Counter()
    for trace in traces:
        info.update({k: int(v) for k, v in trace.info.items() if k.startswith("call_")})
    finishes = Counter(t.finish for t in traces)
    return {"seconds": round(wall, 2), "loop_lag_ms": round(lag * 1e3), "finish": dict(finishes), "calls": dict(info)}


def main(
    repository: Annotated[str, typer.Argument(help="bundled:NAME, folder:PATH or sdist:FILE.")] = "bundled:ledger",
    sites: int = 150,
    episode_count: Annotated[int, typer.Option("--episodes")] = 256,
    workers: int = 2,
    engine: str = "jedi",
) -> None:
    """Measure and print JSON."""
    with tempfile.TemporaryDirectory() as folder:
        columns = {"repository": repository, "gold": ["a.py::f"]}
        started = time.perf_counter()
        snapshot = open_snapshot(columns, SnapshotStore())
        report: dict[str, Any] = {"snapshot_s": round(time.perf_counter() - started, 2), "files": len(snapshot.files)}
        inner = (
            jedi_backend(workers, cache_dir=Path(folder) / "jedi")
            if engine == "jedi"
            else make_backend(engine, workers)
        )
        backend = CachedBackend(inner)
        try:
            asked = sites_of(snapshot, sites, 0)
            tool = JumpTool(snapshot, backend)
            for name in ("uncached", "cached"):
                times, statuses = asyncio.run(jumps(tool, asked))
                report[name] = {**quantiles(times), "statuses": dict(statuses)}
            report["episodes"] = asyncio.run(episodes(backend, columns, asked, episode_count))
            report["workers_mb"] = round(inner.memory_mb())
            report["backend"] = backend.metrics()
        finally:
            backend.close()
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    typer.run(main)
