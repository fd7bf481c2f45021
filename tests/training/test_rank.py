"""Loss, gradients and weights do not depend on micro-batches, packing, ZeRO stage or ranks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import tiny_model

SCRIPT = Path(__file__).with_name("two_ranks.py")
pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"), "llama")


def run(model: Path, out: Path, *settings: str, world: int, stage: int, layout: str) -> dict:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = os.environ | {"PYTHONPATH": str(SCRIPT.parents[2])}
    processes = [
        subprocess.Popen(
            [
                *(sys.executable, str(SCRIPT), str(model), str(out)),
                *(str(rank), str(world), str(port), str(stage), layout, *settings),
            ],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    outputs = [process.communicate(timeout=400)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(o[-3000:] for o in outputs)
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def expected(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict:
    return run(model, tmp_path_factory.mktemp("out") / "r.json", world=1, stage=0, layout="whole")


@pytest.mark.parametrize(
    ("world", "stage", "layout"),
    [
        (1, 0, "single"),  # LOSS-13
        (1, 0, "reversed"),
        (2, 0, "uneven"),  # LOSS-14
        (2, 0, "idle"),  # LOSS-12
        (2, 1, "whole"),
        (2, 2, "uneven"),  # LOSS-15
        (2, 3, "uneven"),  # LOSS-16
    ],
)
def test_the_result_is_that_of_one_rank_and_one_micro_batch(
    model: Path, expected: dict, tmp_path: Path, world: int, stage: int, layout: str
) -> None:
    found = run(model, tmp_path / "r.json", world=world, stage=stage, layout=layout)
    for one, other in zip(expected["steps"], found["steps"], strict=True):
        assert other == pytest.approx(one, rel=1e-4)
    assert found["weights"] == pytest.approx(expected["weights"], rel=1e-5)


@pytest.mark.parametrize(
    ("before", "after"),
    [((1, 0), (2, 3)), ((2, 3), (2, 2)), ((2, 2), (1, 0)), pytest.param((2, 1), (2, 3), marks=pytest.mark.slow)],
)
def test_a_checkpoint_goes_on_with_other_ranks_and_another_stage(
    model: Path, expected: dict, tmp_path: Path, before: tuple[int, int], after: tuple[int, int]
) -> None:
    state, out = tmp_path / "state", tmp_path / "r.json"
    first = run(model, out, f"save={state}", world=before[0], stage=before[1], layout="whole")
    second = run(model, out, f"load={state}", world=after[0], stage=after[1], layout="whole")
    for one, other in zip(expected["steps"], first["steps"] + second["steps"], strict=True):
        assert other == pytest.approx(one, rel=1e-4)
    assert second["weights"] == pytest.approx(expected["weights"], rel=1e-5)


FAMILY = {
    "values": ["algorithm.advantage=raw", "algorithm.token_advantage=gae", "algorithm.value_clip=0.2"],
    "teacher": ["algorithm.advantage=none", "algorithm.token_advantage=distill", "algorithm.policy_loss=reinforce"],
    "full KL": ["algorithm.kl_coef=0.1", "algorithm.kl_estimator=full_reverse"],
    "full KL, LoRA": ["algorithm.kl_coef=0.1", "algorithm.kl_estimator=full_forward", "model.lora.enabled=true"],
    "guide": ["algorithm.kl_coef=0.1", "algorithm.guide=branch"],
    "moving": ["algorithm.kl_coef=0.1", "algorithm.kl_estimator=k2", "algorithm.reference_every=1"],
}


SLOW = ("full KL, LoRA", "guide")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in FAMILY])
def test_every_signal_is_made_alike_on_one_rank_and_on_two(model: Path, tmp_path: Path, name: str) -> None:
    settings = FAMILY[name]
    if name == "teacher":
        settings = [*settings, f"algorithm.teacher={tiny_model(tmp_path / 'teacher', 'llama', seed=5)}"]
    one = run(model, tmp_path / "one.json", *settings, world=1, stage=0, layout="whole")
    two = run(model, tmp_path / "two.json", *settings, world=2, stage=2, layout="uneven")
    for a, b in zip(one["steps"], two["steps"], strict=True):
        assert b == pytest.approx(a, rel=1e-4, abs=1e-7)
    assert two["weights"] == pytest.approx(one["weights"], rel=1e-5)
    assert one["steps"][0]["train/grad_norm"] > 0
    if name == "values":  # the head starts at zero and moves towards the returns
        assert one["steps"][0]["value/mean"] == 0 != one["steps"][1]["value/mean"]
        assert one["steps"][1]["value/loss"] < one["steps"][0]["value/loss"]
    if name == "moving":  # the reference is the policy again before every step
        assert all(abs(step["policy/ref_kl"]) < 1e-10 for step in one["steps"])
    if name.startswith("full KL"):  # the policy leaves the reference
        assert abs(one["steps"][0]["policy/ref_kl"]) < 1e-6 < one["steps"][1]["policy/ref_kl"]
