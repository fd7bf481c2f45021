"""Commands that start nothing: data show, config algorithms, parts and reference, preflight."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from rl.cli.data import histogram
from rl.cli.main import app
from rl.config import load
from rl.config.memory import estimate, read_shape
from rl.config.reference import markdown
from tests.stack.runs import make_recipe
from tests.tiny import tiny_model

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


def test_data_show_gives_tokens_columns_and_lengths(tmp_path: Path, monkeypatch) -> None:
    recipe = make_recipe(tmp_path)
    monkeypatch.chdir(tmp_path)
    out = run("data", "show", str(recipe), "-n", "1")
    assert "<|im_start|>user" in out
    assert "prompt tokens" in out
    assert "reward letters gets prompt='say word" in out
    assert "24 training tasks" in out


def test_histogram_counts_every_length_once() -> None:
    bins = histogram([3, 3, 4, 40, 41])
    assert sum(count for _, _, count in bins) == 5
    assert bins[0] == (3, 6, 3)
    assert len(bins) <= 10


def test_the_configuration_page_is_current() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text() == markdown(), (
        "run: hone config reference > docs/configuration.md"
    )


def test_every_algorithm_and_part_is_described() -> None:
    assert "sage" in run("config", "algorithms")
    for line in run("config", "parts").splitlines()[1:]:
        assert len(line.split()) > 2, line


def test_the_estimate_knows_the_parameters(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = tiny_model(tmp_path / "m", "llama")
    shape = read_shape(folder)
    assert shape.parameters == sum(p.numel() for p in AutoModelForCausalLM.from_pretrained(folder).parameters())
    config = load(None, [f"model.path={folder}"]).config
    parts = estimate(config, shape)
    assert parts["trainer: AdamW moments"] == 2 * parts["trainer: gradients"] == 8 * shape.parameters
    config.trainer.ranks, config.trainer.zero_stage = 4, 3
    assert estimate(config, shape)["trainer: weights"] == shape.parameters
