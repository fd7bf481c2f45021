"""The whole stack learns: Ray, vLLM and DeepSpeed on a tiny model, from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stack.runs import hone, make_recipe, metrics

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]


def test_a_tiny_model_learns_to_write_letters(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    done = hone(tmp_path, "train", str(recipe), "stop.steps=40")
    rows = metrics(tmp_path / "runs" / "tiny")
    rewards = [row["reward/mean"] for row in rows if "reward/mean" in row]
    assert len(rewards) == 40
    assert rewards[0] < 0.3
    assert sum(rewards[-5:]) / 5 > 0.9
    assert rows[0]["eval/accuracy"] < 0.5
    assert rows[-1]["eval/accuracy"] > 0.9
    # The engine samples from the very weights that are trained: float32 gap, ratio one.
    assert max(row.get("gap/max", 0.0) for row in rows) < 1e-3
    assert all(row["policy/ratio_mean"] == pytest.approx(1, abs=1e-4) for row in rows if "policy/ratio_mean" in row)
    assert (tmp_path / "runs" / "tiny" / "plots").is_dir()
    assert "tiny" in done.stdout
