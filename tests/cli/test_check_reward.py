"""`hone check reward`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rl.cli.main import app


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": "2+2", "answer": "4", "completion": "it is 4"}, {"prompt": "1+1", "answer": "2"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def check(fn: str, *more: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["check", "reward", fn, "--data", "rows.jsonl", *more], env={"COLUMNS": "120"})
    return result.exit_code, result.output


def test_a_sound_reward_passes(folder: Path) -> None:
    for name in ("last_number", "math", "exact_match"):
        code, out = check(name)
        assert code == 0, out
        assert "repeats itself" in out
        assert "none breaks it" in out


def test_scores_and_options_are_shown(folder: Path) -> None:
    (folder / "mine.py").write_text("def size(completions, k):\n    return [k * len(c) for c in completions]\n")
    code, out = check("mine.py:size", "--option", "k=3")
    assert code == 0
    assert "size(completions, k)" in out
    assert "it is 4" in out


def test_what_odd_texts_break_and_what_changes_is_named(folder: Path) -> None:
    (folder / "bad.py").write_text(
        "import itertools\nn = itertools.count()\n"
        "def first(completions, **_):\n    return [ord(c[-1]['content'][0]) + next(n) for c in completions]\n"
    )
    code, out = check("bad.py:first")
    assert code == 1
    assert "empty" in out
    assert "IndexError" in out
    assert "another score" in out


def test_a_missing_column_is_named(folder: Path) -> None:
    (folder / "wants.py").write_text("def f(completions, solution):\n    return [1.0]\n")
    code, out = check("wants.py:f")
    assert code == 1
    assert "solution" in out
    assert "Traceback" not in out
