"""pass@k against hand-computed numbers."""

from __future__ import annotations

import pytest

from rl.metrics import eval_metrics, pass_at_k
from rl.tracking.names import describe
from tests.objectives.batches import bundle


def test_pass_at_k_is_a_mean_over_tasks():
    tasks = [bundle("a", [1.0, 0.0, 0.0, 0.0]), bundle("b", [1.0, 1.0, 0.0, 0.0]), bundle("c", [0.0] * 4)]
    # k = 2: 1 - C(3, 2) / 6 = 1/2, 1 - C(2, 2) / 6 = 5/6, 0
    assert pass_at_k(tasks) == {
        1: pytest.approx(3 / 12),
        2: pytest.approx((1 / 2 + 5 / 6) / 3),
        4: pytest.approx(2 / 3),
    }
    got = eval_metrics({"sums": tasks, "more": [bundle("d", [1.0, None])]})
    assert got["eval/sums/pass_at/1"] == got["eval/sums/accuracy"]
    assert got["eval/pass_at/1"] == pytest.approx((0.25 + 0.5 + 0 + 1) / 4)
    assert all(describe(name) for name in got)


def test_one_sample_has_no_pass_at_k():
    assert pass_at_k([bundle("a", [1.0])]) == {} == pass_at_k([])
