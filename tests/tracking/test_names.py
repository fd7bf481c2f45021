"""The metric table: current in the docs, and complete for what is computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl.tracking import names
from tests.tracking.test_tracker import bundle


def test_docs_are_current():
    page = Path(__file__).parents[2] / "docs" / "metrics.md"
    assert page.read_text() == names.table(), "run `python -m rl.tracking.names > docs/metrics.md`"


@pytest.mark.parametrize("name", ["reward/my_reward/mean", "eval/gsm8k/main/accuracy", "data/sums/tasks", "train/lr"])
def test_known(name):
    assert names.describe(name)


@pytest.mark.parametrize("name", ["train/lrr", "reward", "eval/accuracies", "reward/mean/"])
def test_unknown(name):
    assert names.describe(name) is None


def test_every_computed_metric_is_described():
    from rl.metrics import eval_metrics, rollout_metrics
    from rl.types import PolicyVersion

    bundles = [bundle("x", 2), bundle("y", 2)]
    computed = rollout_metrics(bundles, PolicyVersion(0, 3)) | eval_metrics({"sums": bundles})
    assert computed and [name for name in computed if names.describe(name) is None] == []
