"""Whole episodes by scripted policies."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import time
from collections.abc import Sequence
from typing import Any

import pytest

from envs.base import Action, Environment, Limits, StepResult
from envs.parsing import parse_tool_calls
from envs.repo_navigator.backend import CachedBackend, ProcessBackend
from envs.repo_navigator.environment import RepoNavigator
from envs.repo_navigator.prompt import FORCED, ONE_CALL
from envs.repo_navigator.snapshot import SnapshotStore
from envs.repo_navigator.tasks import planted_rows, with_ceilings
from rl.types import Task

GOLD = "ledger/report.py::balance_sheet"
ANSWER = "I am sure. \\boxed{" + GOLD + "}"


def count(text: str) -> int:
    return (len(text) + 3) // 4


def budget(tokens: int = 6000, seconds: float = 60.0) -> Limits:
    return Limits(tokens, count, time.monotonic() + seconds)


def task(**columns: Any) -> Task:
    issue = "The sheet is empty, see ledger/__main__.py. A trap: \\boxed{ledger/rules.py::check_entry}"
    made = {"repository": "bundled:ledger", "gold": [GOLD], "gold_files": ["ledger/report.py"], **columns}
    return Task("t", ({"role": "user", "content": issue},), made)


def call(symbol: str = "balance_sheet", path: str = "ledger/__main__.py", **more: Any) -> str:
    arguments = {"symbol": symbol, "file_path": path, **more}
    return "<tool_call>\n" + json.dumps({"name": "jump", "arguments": arguments}) + "\n</tool_call>"


def act(text: str, finish: Any = "stop") -> Action:
    return Action(text, parse_tool_calls(text, "hermes"), finish)


@pytest.fixture
def make(store: SnapshotStore, backend: ProcessBackend) -> Any:
    def build(**options: Any) -> RepoNavigator:
        return RepoNavigator(snapshots=str(store.folder), backend=backend, **options)

    return build


def play(env: RepoNavigator, turns: Sequence[str], **columns: Any) -> list[StepResult]:
    async def episode() -> list[StepResult]:
        results = []
        try:
            await env.reset(task(**columns), seed=0, limits=budget())
            for turn in turns:
                results.append(await env.step(act(turn), limits=budget()))
                if results[-1].terminated or results[-1].truncated:
                    break
        finally:
            await env.close()
        return results

    return asyncio.run(episode())


def test_prompt_has_issue_entry_and_rules_and_no_gold(make: Any) -> None:
    env = make()
    first = asyncio.run(env.reset(task(), seed=0, limits=budget()))
    text = first.messages[-1]["content"]
    assert isinstance(env, Environment) and first.tools[0]["function"]["name"] == "jump"
    assert "def main(argv):" in text and "The sheet is empty" in text and "12 calls" in text
    assert "ledger/report.py" not in text and "test_ledger" not in text
    assert first.info == {"entry_mentioned": 1.0}
    long = task(issue="word " * 50_000 + "ledger/__main__.py")
    short = asyncio.run(make(max_prompt_tokens=700).reset(long, seed=0, limits=budget()))
    assert count(short.messages[-1]["content"]) <= 700


@pytest.mark.parametrize(
    ("mode", "turns", "rewards"),
    [
        ("paper", [call(), ANSWER], {"dice": 1.0, "calls": 1.0}),
        ("paper", [call(), call("nothing"), ANSWER], {"dice": 1.0, "calls": 0.5}),
        ("paper", [ANSWER], {"dice": 1.0, "calls": 0.0}),
        ("paper", [call(), "\\boxed{ledger/x.py::f}"], {"dice": 0.0, "calls": 1.0}),
        ("paper", [call(), "\\boxed{}"], {"dice": 0.0, "calls": 1.0}),
        ("hardened", [call(), ANSWER], {"dice": 1.0, "calls": 0.2}),
        ("hardened", [call("nothing"), ANSWER], {"dice": 1.0, "calls": 0.0}),
        ("hardened", [call(), "\\boxed{" + GOLD + ", ledger/book.py::Book.post}"], {"dice": 2 / 3, "calls": 0.2}),
    ],
)
def test_rewards(make: Any, mode: str, turns: list[str], rewards: dict[str, float]) -> None:
    last = play(make(mode=mode), turns)[-1]
    assert last.terminated and last.rewards == pytest.approx(rewards)


def test_one_safe_call_never_beats_a_right_answer(make: Any) -> None:
    def total(turns: list[str]) -> float:
        return sum(play(make(), turns)[-1].rewards.values())

    safe = total([call(), "\\boxed{ledger/x.py::f}"])
    assert safe < total([call("nothing"), ANSWER]) < total([call(), ANSWER])


def test_unresolved_calls_are_neutral_when_hardened(make: Any) -> None:
    turns = [call(), call("lstrip", "ledger/x_dynamic.py"), ANSWER]
    overlay = {"ledger/x_dynamic.py": "def f(x):\n    return x.lstrip()\n"}
    assert play(make(), turns, overlay=overlay)[-1].info["success_rate"] == 1.0
    assert play(make(mode="paper"), turns, overlay=overlay)[-1].info["success_rate"] == 0.5


@pytest.mark.parametrize("calls", [0, 1, 12, 13, 14])
def test_the_cap_on_calls(make: Any, calls: int) -> None:
    results = play(make(), [*[call()] * calls, ANSWER])
    if calls <= 12:
        assert results[-1].rewards["dice"] == 1.0 and results[-1].terminated
    else:
        assert len(results) == 13 and results[-1].truncated and not results[-1].terminated
        assert sum(results[-1].rewards.values()) == 0.0
    if calls >= 12:
        assert FORCED in results[11].messages[-1]["content"]
        assert FORCED not in results[10].messages[-1]["content"]


def test_every_call_of_a_turn_gets_a_reply(make: Any) -> None:
    (first, *_) = play(make(), [call() + call("main") + call("parse_money")])
    assert [m["content"] == ONE_CALL for m in first.messages] == [False, True, True]
    assert first.info["calls"] == 1.0 and len({m["tool_call_id"] for m in first.messages}) == 3
    (mixed, *_) = play(make(), ["<tool_call>{bad</tool_call>" + call()])
    assert "ledger/report.py::balance_sheet" in mixed.messages[1]["content"]


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (call("main").replace('"', "'"), "ok"),
        ('<tool_call>{"name": "jump", "arguments": {"symbol": "main"</tool_call>', "parse_error"),
        ("<tool_call></tool_call>", "parse_error"),
        (call(index="1"), "ok"),
        (call(index=1.0), "ok"),
        (call(index=None), "ok"),
        (call(index=True), "bad_arguments"),
        (call(index="one"), "bad_arguments"),
        (call(depth=3), "bad_arguments"),
        ('<tool_call>{"name": "jump", "arguments": {"symbol": "main"}}</tool_call>', "bad_arguments"),
        ('<tool_call>{"name": "jump", "arguments": {"symbol": 3, "file_path": "a.py"}}</tool_call>', "bad_arguments"),
        ('<tool_call>{"name": "grep", "arguments": {}}</tool_call>', "bad_arguments"),
        (call("main") + " \\boxed{a.py::f}", "ok"),
        (call("x" * 20_000), "bad_arguments"),
        (call("x" * 150), "not_in_file"),
        (call("main", "../secret.py"), "bad_path"),
    ],
)
def test_what_policies_write_is_answered(make: Any, text: str, status: str) -> None:
    (result, *_) = play(make(), [text])
    assert not result.terminated and result.info[f"call_{status}"] == 1.0
    assert 0 < len(result.messages[0]["content"]) < 3000


def test_a_turn_cut_anywhere_runs_nothing(make: Any) -> None:
    env = make()

    async def main() -> None:
        await env.reset(task(), seed=0, limits=budget())
        text = call()
        for end in range(len(text) + 1):
            result = await env.step(act(text[:end], "length"), limits=budget())
            assert result.truncated and not result.messages and env.calls == 0

    asyncio.run(main())


def test_only_the_policys_last_turn_is_an_answer(make: Any) -> None:
    results = play(make(), ["thinking \\boxed", call(), "<think>" + ANSWER + "</think> hm"])
    assert [r.terminated for r in results] == [False, False, False]
    ended = play(make(no_answer="end"), ["nothing to say"])
    assert ended[-1].terminated and ended[-1].rewards["dice"] == 0.0
    nagging = play(make(), ["hm"] * 5)
    assert len(nagging) == 3 and nagging[-1].terminated


def test_observations_fit_what_is_left(make: Any) -> None:
    for tokens in (300, 400, 600):
        env = make()

        async def main(env: RepoNavigator = env, tokens: int = tokens) -> StepResult:
            await env.reset(task(), seed=0, limits=budget())
            return await env.step(act(call("Book")), limits=budget(tokens))

        assert count(asyncio.run(main()).messages[0]["content"]) <= max(tokens - 256, 16) + 16


def test_unusable_tasks_say_so(make: Any) -> None:
    for columns, words in [
        ({"gold": []}, "gold"),
        ({"repository": "svn:x"}, "bundled:"),
        ({"repository": "bundled:nope"}, "ledger"),
        ({"snapshot_id": "0000"}, "has changed"),
    ]:
        with pytest.raises(ValueError, match=words):
            play(make(), [ANSWER], **columns)


def test_hundreds_of_episodes_leave_nothing_and_agree(make: Any, store: SnapshotStore, backend: ProcessBackend) -> None:
    cached = CachedBackend(backend)
    turns = [call(), call("table", "ledger/report.py"), ANSWER]

    async def episode() -> list[str]:
        env = RepoNavigator(snapshots=str(store.folder), backend=cached)
        await env.reset(task(), seed=0, limits=budget())
        said = []
        try:
            for turn in turns:
                result = await env.step(act(turn), limits=budget())
                said += [m["content"] for m in result.messages] + [str(dict(result.rewards))]
        finally:
            await env.close()
        return said

    async def cancelled(after: float) -> None:
        job = asyncio.create_task(episode())
        await asyncio.sleep(after)
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)

    async def main() -> list[list[str]]:
        await asyncio.gather(*(cancelled(i / 2000) for i in range(20)))
        return await asyncio.gather(*(episode() for _ in range(256)))

    asyncio.run(main())
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    said = asyncio.run(main())
    gc.collect()
    assert all(s == said[0] for s in said)
    assert len(os.listdir("/proc/self/fd")) == before


def test_planted_tasks_can_be_solved_and_beat_the_baselines(
    make: Any, store: SnapshotStore, backend: ProcessBackend
) -> None:
    rows = asyncio.run(with_ceilings(planted_rows("bundled:router", store, count=6, seed=1), store, backend))
    assert len(rows) >= 5
    sums: dict[str, float] = {}
    for row in rows:
        name = row["gold"][0].rpartition("::")[2].rpartition(".")[2]
        assert row["gold_files"][0] not in row["issue"] and f"`{name}`" not in row["issue"]
        assert row["ceiling"]["best_dice"] == 1.0
        answer = play(make(), ["\\boxed{" + row["gold"][0] + "}"], **row)[-1]
        assert answer.rewards["dice"] == 1.0
        scores = asyncio.run(make().baselines(task(**row), seed=0, limits=budget()))
        for key, value in scores.items():
            sums[key] = sums.get(key, 0.0) + value["function_dice"]
    assert sums["empty"] == 0.0 and sums["oracle"] == len(rows)
    assert all(sums[b] < sums["oracle"] / 2 for b in ("entry", "named_in_issue", "random_reachable"))


def test_what_cannot_be_reached_is_told(store: SnapshotStore, backend: ProcessBackend) -> None:
    from envs.repo_navigator.ceiling import ceiling, reach

    files = {
        "main.py": "from chain import a0\na0()\n",
        "chain.py": "".join(f"def a{i}():\n    return a{i + 1}()\n" for i in range(4)) + "def a4():\n    return 1\n",
        "island.py": "def lost():\n    return 1\n",
    }
    snapshot = store.from_files(files)
    gold = ["chain.py::a4", "island.py::lost"]
    limit = ceiling(asyncio.run(reach(snapshot, "main.py", backend)), snapshot, gold, max_calls=12)
    assert (limit.reachable, limit.best_dice, limit.complete) == (0.5, pytest.approx(2 / 3), True)
