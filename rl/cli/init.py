"""`hone init`: a small project that runs as it is, to be changed piece by piece."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Annotated

import typer

RECIPE = """\
# SmolLM2-135M learns to add. Change a line, then: hone train recipe.yaml
name: my_run
device: auto
tasks_per_step: 8
samples_per_task: 8

model:
  path: smollm2-135m

data:
  sources:
    - {path: sample.jsonl, name: sums, holdout: 0.2, part: train}

eval:
  every: 10
  sources:
    - {path: sample.jsonl, name: sums, holdout: 0.2, part: holdout}

reward:
  outcome: correct
  functions:
    correct: {fn: "my_rewards/sums.py:correct"}
    brief: {fn: "my_rewards/sums.py:brief", weight: 0.1}

rollout:
  max_response_tokens: 24

trainer:
  lr: 2e-5
  warmup_updates: 2

stop:
  steps: 40
"""

REWARD = '''\
"""Rewards of this project: plain functions, one number for each completion.

Parameters are filled by name; `answer` is the column of sample.jsonl.
"""

import re


def correct(completions, answer):
    """1 when the last number of the text is the answer."""
    return [float(last_number(text_of(c)) == a) for c, a in zip(completions, answer)]


def brief(completions):
    """From 1 for an empty text down to 0 at 80 characters."""
    return [max(0.0, 1.0 - len(text_of(c)) / 80) for c in completions]


def last_number(text):
    numbers = re.findall(r"-?\\d+", text)
    return numbers[-1] if numbers else None


def text_of(completion):
    """Completions are chat messages where the prompt is, else text."""
    return completion if isinstance(completion, str) else str(completion[-1]["content"])
'''

README = """\
# A Hone project

- `recipe.yaml`: what is trained, on what, for how long
- `sample.jsonl`: one task a line; columns other than `prompt` go to the rewards by name
- `my_rewards/sums.py`: the rewards

    hone train recipe.yaml              # train; results in runs/my_run/
    hone resume runs/my_run stop.steps=80
"""


def init(
    directory: Annotated[Path, typer.Argument(help="Folder to make the project in.")] = Path("."),
) -> None:
    """Write a small project: a recipe, a reward file and sample data.

    Example: hone init my_project
    """
    from rl.cli.report import reported

    with reported():
        write_project(directory)
    go = "" if directory.resolve() == Path.cwd() else f"cd {directory} && "
    typer.echo(f"Wrote recipe.yaml, sample.jsonl, my_rewards/sums.py, README.md.\nNext: {go}hone train recipe.yaml")


def write_project(directory: Path) -> None:
    """Writes the project's files.

    Raises:
        ConfigError: one of them is there already; nothing is written then.
    """
    from rl.config.errors import ConfigError

    files = {
        "recipe.yaml": RECIPE,
        "sample.jsonl": sample(),
        "my_rewards/sums.py": REWARD,
        "README.md": README,
    }
    taken = [name for name in files if (directory / name).exists()]
    if taken:
        raise ConfigError(f"{directory} has {', '.join(taken)} already; nothing was written. Name another folder")
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def sample(rows: int = 400) -> str:
    """Distinct sums of two numbers below 100, as JSONL."""
    pairs = random.Random(0).sample(range(10_000), rows)
    lines = []
    for a, b in (divmod(pair, 100) for pair in pairs):
        lines.append(json.dumps({"prompt": f"What is {a} + {b}? Answer with a number.", "answer": str(a + b)}))
    return "\n".join(lines) + "\n"
