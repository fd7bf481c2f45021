"""What scoring costs: math answers a second, a call into another process, memory of many at once, the sandbox.

    python benchmarks/scoring.py

All with process isolation on, as in a run. Wanted: 300 answers a second on two cores, under 2 ms a warm call,
under 1.5 GB for 1,000 scorings at once, under 60 ms from start to verdict of a trivial Python program.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import statistics
import sys
import threading
import time
from pathlib import Path

import psutil

from rewards.contract import arguments_for
from rewards.exact import exact_match
from rewards.pool import ScoringPool
from rewards.sandbox import level, python
from rewards.scorer import Scorer
from rl.config.schema import RewardConfig, RewardFunctionConfig
from rl.types import Bundle, Finish, Group, Task, Trajectory

CASES = Path(__file__).resolve().parents[1] / "tests" / "data" / "math_answers.tsv"
GROUP = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--answers", type=int, default=4000)
    arguments = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    math_answers(arguments.answers)
    warm_call()
    many_at_once(1000)
    sandbox()


def typical() -> list[tuple[str, str]]:
    """Gold answers and texts as they are met: the reported cases that are short, each in a sentence of reasoning."""
    csv.field_size_limit(10**7)
    with CASES.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    thought = "Let us think step by step. We add the terms and simplify the fraction. " * 20
    return [(r["gold"], thought + r["model_answer_text"]) for r in rows if len(r["model_answer_text"]) < 500]


def trajectory(task: Task, text: str, index: int) -> Trajectory:
    said = (*task.messages, {"role": "assistant", "content": text})
    return Trajectory("r", task.task_id, "solution", index, 0, [], said, Finish.STOP, len(task.messages))


def bundles(count: int) -> list[Bundle]:
    """``count`` trajectories in groups."""
    cases, made = typical(), []
    for number in range(count // GROUP):
        gold, text = cases[number % len(cases)]
        task = Task(f"t{number}", ({"role": "user", "content": "How much is it?"},), {"answer": gold})
        members = [trajectory(task, text, i) for i in range(GROUP)]
        made.append(Bundle(task.task_id, task, 0, {"s": Group(task.task_id, "s", task, GROUP, members)}))
    return made


def scored(reward: str, work: list[Bundle]) -> tuple[float, int]:
    """Seconds for all bundles at once, and the most bytes that this process and its children held."""
    scorer = Scorer(RewardConfig(functions={"r": RewardFunctionConfig(fn=reward)}, workers=2), base_dir=Path())
    most, ended = 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.wait(0.02):
            processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
            held = 0
            for process in processes:
                try:
                    held += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            most = max(most, held)

    async def all_of_them() -> float:
        await scorer.score(bundles(2 * GROUP)[0])  # the processes are there and have imported what they need
        await asyncio.gather(*(scorer.score(bundle) for bundle in bundles(4 * GROUP)))
        began = time.monotonic()
        await asyncio.gather(*(scorer.score(bundle) for bundle in work))
        return time.monotonic() - began

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        seconds = asyncio.run(all_of_them())
    finally:
        ended.set()
        watcher.join()
        scorer.close()
    assert all(t.reward is not None for bundle in work for t in bundle.trajectories)
    return seconds, most


def math_answers(count: int) -> None:
    work = bundles(count)
    seconds, _ = scored("math", work)
    total = len(work) * GROUP
    print(
        f"math: {total / seconds:.0f} answers a second ({total} in groups of {GROUP}, 2 workers; wanted 300)",
        flush=True,
    )


def warm_call(calls: int = 300) -> None:
    pool = ScoringPool(1)
    task = Task("t", ({"role": "user", "content": "?"},), {"answer": "4"})
    members = [trajectory(task, "4", 0)]

    def call() -> None:
        pool.score("exact_match", Path(), {}, task, members, 30.0)

    try:
        call()
        there, here = [], []
        for _ in range(calls):
            began = time.perf_counter()
            call()
            there.append(time.perf_counter() - began)
            began = time.perf_counter()
            exact_match(**arguments_for(exact_match, [task], members, {}))
            here.append(time.perf_counter() - began)
    finally:
        pool.close()
    extra = (statistics.median(there) - statistics.median(here)) * 1000
    print(f"isolation: {extra:.2f} ms a warm call, median of {calls} (wanted: under 2)")


def many_at_once(count: int) -> None:
    _, most = scored("math", bundles(count))
    print(f"memory: {most / 2**30:.2f} GiB for {count} scorings at once, this process included (wanted: under 1.5)")


def sandbox(runs: int = 40) -> None:
    assert python("print(1)").stdout == "1\n"
    seconds = []
    for _ in range(runs):
        began = time.perf_counter()
        assert python("print(1)").succeeded
        seconds.append(time.perf_counter() - began)
    middle, slow = statistics.median(seconds) * 1000, sorted(seconds)[int(0.95 * runs)] * 1000
    print(f"sandbox ({level()}): median {middle:.0f} ms, 95th percentile {slow:.0f} ms (wanted: median under 60)")


if __name__ == "__main__":
    main()
