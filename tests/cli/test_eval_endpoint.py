"""`hone eval --endpoint`: the recipe's held-out tasks and rewards with a model behind an API."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from envs.checking_program import ScriptedEndpoint
from envs.repo_navigator.environment import close_backends
from envs.repo_navigator.snapshot import SnapshotStore
from envs.repo_navigator.tasks import planted_rows
from rl.cli.main import app
from tests.tiny import tiny_model


def evaluate(*arguments: str, says: str = "4", how: str = "answer") -> Any:
    async def main() -> Any:
        async with ScriptedEndpoint(says) as endpoint:
            command = ["eval", *arguments, "--endpoint", endpoint.url("e", how), "--concurrency", "2"]
            return await asyncio.to_thread(CliRunner().invoke, app, command)

    return asyncio.run(main())


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def recipe(folder: Path, source: str, reward: str, more: str = "") -> str:
    """A recipe whose tasks are those of one source."""
    (folder / "recipe.yaml").write_text(
        f"model: {{path: {folder}/model}}\n"
        f"data: {{sources: [{source}]}}\n"
        f"eval: {{sources: [{source}]}}\n"
        f"reward: {reward}\n"
        f"stop: {{steps: 1}}\n{more}"
    )
    return str(folder / "recipe.yaml")


@pytest.fixture
def sums(tmp_path: Path) -> list[str]:
    tiny_model(tmp_path / "model")
    (tmp_path / "sums.jsonl").write_text(
        "".join(json.dumps({"prompt": f"2+{i}?", "answer": str(2 + i)}) + "\n" for i in range(4))
    )
    reward = "{outcome: right, functions: {right: {fn: math}}}"
    return [recipe(tmp_path, f"{{path: {tmp_path}/sums.jsonl, name: sums}}", reward), "eval.samples_per_task=2"]


def test_single_turns_are_scored_and_saved(sums: list[str], tmp_path: Path) -> None:
    done = evaluate(*sums, "--save", str(tmp_path / "out.jsonl"))
    assert done.exit_code == 0, done.output
    assert "eval/sums/accuracy" in done.output and "0.25" in done.output and "tokens_mean" not in done.output
    rows = rows_of(tmp_path / "out.jsonl")
    assert len(rows) == 8 and sum(r["reward"] for r in rows) == 2.0
    assert {r["finish"] for r in rows} == {"stop"} and not any(r["segments"] for r in rows)
    scored = CliRunner().invoke(app, ["score", str(tmp_path / "out.jsonl"), "--reward", "math"])
    assert scored.exit_code == 0, scored.output


def test_an_endpoint_that_refuses_or_is_not_there_is_told(sums: list[str]) -> None:
    refused = evaluate(*sums, how="refuse")
    assert refused.exit_code == 2 and "40000 tokens" in refused.output, refused.output
    absent = CliRunner().invoke(app, ["eval", *sums, "--endpoint", "http://127.0.0.1:9/v1"])
    assert absent.exit_code == 2 and "127.0.0.1:9" in absent.output, absent.output


def test_repo_navigator_is_shown_beside_its_baselines(tmp_path: Path) -> None:
    tiny_model(tmp_path / "model")
    store = SnapshotStore(tmp_path / "snapshots")
    rows = planted_rows("bundled:router", store, count=3, seed=1)
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    made = recipe(
        tmp_path,
        f"{{path: {tmp_path}/tasks.jsonl, name: router}}",
        "{outcome: dice, functions: {dice: {fn: environment}}}",
        "environment: repo_navigator\n"
        f"environment_options: {{snapshots: {tmp_path}/snapshots, workers: 1}}\n"
        "prompt: {max_tokens: 2048}\n",
    )
    try:
        done = evaluate(made, says="\\boxed{" + rows[0]["gold"][0] + "}")
    finally:
        close_backends()
    assert done.exit_code == 0, done.output
    table = {cells[0]: cells[1:] for line in done.output.splitlines() if (cells := line.split())}
    assert table["metric"] == ["value", "empty", "entry", "named_in_issue", "oracle", "random_reachable"]
    value, empty, *_, oracle, _ = table["eval/router/episode/function_dice"]
    right = sum(r["gold"] == rows[0]["gold"] for r in rows) / 3
    assert float(value) == pytest.approx(right, abs=1e-3) and float(empty) == 0.0 and float(oracle) == 1.0
