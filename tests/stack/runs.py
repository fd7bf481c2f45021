"""Tiny runs on the real stack, started the way a user starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.tiny import tiny_model

REWARD = '''
def letters(completions, **_):
    """Share of lower-case letters among the first eight characters."""
    texts = ["".join(m["content"] for m in c)[:8] for c in completions]
    return [sum("a" <= c <= "z" for c in text) / 8 for text in texts]
'''

RECIPE = """
name: tiny
seed: 0
device: cpu
tasks_per_step: 4
samples_per_task: 16
model: {path: MODEL}
prompt: {max_tokens: 48}
data:
  sources: [{path: tasks.jsonl, name: words}]
eval:
  sources: [{path: held.jsonl, name: held}]
reward:
  outcome: letters
  functions:
    letters: {fn: "reward.py:letters"}
rollout: {max_response_tokens: 8, dtype: float32, cache_gb: 0.05, max_sequences: 64}
trainer: {lr: 5.0e-3, dtype: float32}
checkpoint: {keep: 5}
stop: {steps: 4}
"""


def make_recipe(folder: Path, *, tied: bool = False) -> Path:
    """A folder with a tiny random model, 24 tasks, a reward file and a recipe."""
    folder.mkdir(parents=True, exist_ok=True)
    model = tiny_model(folder / "model", "llama", tied=tied)
    (folder / "reward.py").write_text(REWARD)
    for name, numbers in (("tasks", range(24)), ("held", range(100, 108))):
        lines = [json.dumps({"prompt": f"say word {i}", "answer": "x"}) for i in numbers]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE.replace("MODEL", str(model)))
    return recipe


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "rl", *arguments]


def environment() -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[2])
    return os.environ | {"PYTHONPATH": root, "HF_HUB_OFFLINE": "1"}


def hone(folder: Path, *arguments: str, timeout: float = 600, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs `hone ARGUMENTS` in ``folder``."""
    done = subprocess.run(
        command(*arguments),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if check:
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    return done


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


TIMES = ("time", "time/", "throughput/")


def without_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Metrics rows less what depends on the clock."""
    return [{k: v for k, v in row.items() if k != "time" and not k.startswith(TIMES[1:])} for row in rows]
