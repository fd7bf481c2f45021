"""`hone score` on saved rollouts and on plain rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rl.cli.main import app
from rl.tracking.jsonable import line
from rl.tracking.samples import from_row, sample_rows
from rl.types import Bundle, Finish, Group, Segment, Task, Trajectory


def bundle() -> Bundle:
    task = Task("t1", ({"role": "user", "content": "2+2?"},), {"answer": "4"}, "sums")
    group = Group("b1", "solution", task, 3)
    for i, text in enumerate(("4", "It is 4", "5")):
        ids = np.array([1, 2, 3 + i], np.int32)
        segment = Segment(ids, np.array([False, False, True]), None)
        messages = (*task.messages, {"role": "assistant", "content": text})
        group.trajectories.append(
            Trajectory(f"r{i}", "b1", "solution", i, i, [segment], messages, Finish.STOP, 1, {"old": 1.0}, reward=1.0)
        )
    return Bundle("b1", task, 0, {"solution": group})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "one" / "rollouts"
    folder.mkdir(parents=True)
    (folder / "step_000001.jsonl").write_text("".join(map(line, sample_rows(1, [bundle()], "train", 9))))
    return folder.parent


def say(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["score", *arguments])
    return done.exit_code, " ".join(done.output.split())


def test_a_row_comes_back_as_it_was_saved() -> None:
    row = json.loads(line(sample_rows(1, [bundle()], "train", 9)[1]))
    task, t = from_row(row)
    assert (task.task_id, task.source, task.columns) == ("t1", "sums", {"answer": "4"})
    assert t.completion_text == "It is 4" and t.prompt_messages == 1 and t.response_tokens == 1
    assert t.rewards == {}  # to be scored


def test_one_reward_against_what_was_saved(run: Path, tmp_path: Path) -> None:
    code, text = say(str(run), "--reward", "last_number", "--out", str(tmp_path / "out.jsonl"))
    assert code == 0, text
    assert "3 samples" in text and "0.6667" in text and "differ on 1 of 3" in text
    rows = [json.loads(row) for row in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["scores"] for row in rows] == [{"saved": 1.0, "1:last_number": v} for v in (1.0, 1.0, 0.0)]


def test_two_rewards_side_by_side_with_options_of_their_own(run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def mine(completions, *, worth=1.0, **_):\n"
        "    return [worth * len(completions)] * len(completions)\n"  # sees the samples of a group at once
    )
    code, text = say(
        str(run / "rollouts" / "step_000001.jsonl"),
        *("--reward", "exact_match", "--reward", f"{tmp_path / 'mine.py'}:mine", "--option", "2.worth=2"),
    )
    assert code == 0, text
    assert "6.0000" in text and "0.3333" in text and "differ on 3 of 3" in text


def test_plain_rows_and_what_is_wrong_with_others(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [{"prompt": "2+2?", "completion": c, "answer": "4"} for c in ("4", "nine \ud800")]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, text = say(str(file), "--reward", "last_number")
    assert code == 0 and "0.5000" in text, text
    file.write_text(json.dumps({"prompt": "a"}) + "\n")
    code, text = say(str(file), "--reward", "last_number")
    assert code != 0 and "row 1 is no rollout" in text
    (tmp_path / "empty").mkdir()
    for path, said in (("empty", "has no rollouts"), ("nothing.jsonl", "nothing.jsonl")):
        code, text = say(str(tmp_path / path), "--reward", "last_number")
        assert code != 0 and said in text, text
    code, text = say(str(file), *("--reward", "exact_match") * 3)
    assert code != 0 and "once or twice" in text
