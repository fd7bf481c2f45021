"""The starting project is complete and refuses to overwrite."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from rl.cli.main import app
from rl.config import load
from rl.config.checks import require_complete
from rl.config.plugins import load_object
from rl.data.sources import read_rows


def test_project_loads_and_scores(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["init", "proj"])
    assert result.exit_code == 0 and "cd proj && hone train recipe.yaml" in result.output
    monkeypatch.chdir("proj")
    config = load("recipe.yaml").config
    require_complete(config)
    rows = read_rows(config.data.sources[0])
    assert len({row["prompt"] for row in rows}) == 400
    correct = load_object(config.reward.functions["correct"].fn, {})
    answer = rows[0]["answer"]
    message = [{"role": "assistant", "content": f"It is {answer}."}]
    assert correct(completions=[message, "no", f"{answer} or {answer}1"], answer=[answer] * 3) == [1.0, 0.0, 0.0]
    assert not (Path.cwd() / "rewards").exists()


def test_refuses_to_overwrite(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("README.md").write_text("mine")
    result = CliRunner().invoke(app, ["init"])
    assert result.exit_code == 2
    assert Path("README.md").read_text() == "mine" and not Path("recipe.yaml").exists()
