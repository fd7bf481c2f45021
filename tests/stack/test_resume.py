"""Four steps are two steps, a stop, a resume and two steps more."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from rl.training.state import read_weights
from tests.stack.runs import hone, make_recipe, metrics, without_times

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

EXACT = ("deterministic=true", "rollout.engine=hf", "eval.at_start=false", "sync.probe=false", "tasks_per_step=2")


def trained_weights(run: Path, step: int) -> dict[str, torch.Tensor]:
    return read_weights(run / "checkpoints" / f"step-{step:06d}" / "trainer")


SAGE = ("algorithm=sage", "algorithm.reference_every=3", "algorithm.reference_mix=0.6")


@pytest.mark.parametrize(
    ("engine", "algorithm"),
    [
        ("hf", ()),
        ("hf", SAGE),  # with a reference that moves between the checkpoint and the end
        ("hf", ("algorithm=ppo",)),  # with a critic
        pytest.param("vllm", (), marks=pytest.mark.slow),
    ],
)
def test_a_resumed_run_is_the_run(tmp_path: Path, engine: str, algorithm: tuple[str, ...]) -> None:
    recipe = str(make_recipe(tmp_path))
    settings = [*EXACT, f"rollout.engine={engine}", "samples_per_task=4", "updates_per_step=2", *algorithm]
    hone(tmp_path, "train", recipe, "name=straight", *settings, "stop.steps=4")
    copies = f"file://{tmp_path}/copies"
    hone(tmp_path, "train", recipe, "name=parts", *settings, "stop.steps=2", f"checkpoint.copy_to={copies}")
    shutil.rmtree(tmp_path / "runs" / "parts")  # the machine is gone
    hone(tmp_path, "resume", f"{copies}/parts", "stop.steps=4")
    straight, parts = tmp_path / "runs" / "straight", tmp_path / "runs" / "parts"
    expected = {row["step"]: row for row in without_times(metrics(straight))}
    found = {row["step"]: row for row in without_times(metrics(parts))}
    assert sorted(found) == sorted(expected) == [1, 2, 3, 4]
    for step, row in expected.items():
        # The stop after step 2 evaluated; all else is the same to the last bit.
        kept = {k: v for k, v in found[step].items() if k in row}
        assert kept == {k: v for k, v in row.items() if k in kept}, step
        assert set(row) - set(kept) <= {k for k in row if k.startswith("eval/")}
    a, b = trained_weights(straight, 4), trained_weights(parts, 4)
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name
    if engine == "hf" and not algorithm:
        check_fork(tmp_path)
        check_export(tmp_path, recipe, a)


def check_fork(folder: Path) -> None:
    """A fork starts where the old run was saved, goes its own way, and leaves that run alone."""
    old = folder / "runs" / "straight"
    before = metrics(old)
    hone(folder, "run", "fork", "runs/straight", "--step", "4", "name=forked", "trainer.lr=0", "stop.steps=5")
    new = folder / "runs" / "forked"
    assert [row["step"] for row in metrics(new) if "train/loss" in row] == [1, 2, 3, 4, 5]
    assert without_times(metrics(new))[: len(before)] == without_times(before)
    assert metrics(old) == before and not (old / "checkpoints" / "step-000005").exists()
    a, b = trained_weights(old, 4), trained_weights(new, 5)
    assert all(torch.equal(a[name], b[name]) for name in a)  # at rate 0


def check_export(folder: Path, recipe: str, trained: dict[str, torch.Tensor]) -> None:
    """The exported folder holds the trained weights, and another command starts from it."""
    from transformers import AutoModelForCausalLM

    hone(folder, "ckpt", "export", "runs/straight", "exported", "--dtype", "float32")
    model = AutoModelForCausalLM.from_pretrained(folder / "exported")
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, trained[f"model.{name}"]), name
    again = hone(folder, "ckpt", "export", "runs/straight", "exported", check=False)
    assert again.returncode == 2
    assert "not empty" in again.stderr
    shown = hone(folder, "eval", recipe, "rollout.engine=hf", "model.path=runs/straight@latest").stdout
    assert "eval/accuracy" in shown
    assert "latest" in hone(folder, "ckpt", "ls", "runs/straight").stdout
    assert "step 4: whole" in hone(folder, "ckpt", "verify", "runs/straight").stdout


def test_resume_says_what_is_wrong(tmp_path: Path) -> None:
    done = hone(tmp_path, "resume", "runs/none", check=False)
    assert done.returncode != 0
    assert "runs/none" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
