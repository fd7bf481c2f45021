"""SAGE beside its baselines on a task with several right answers, on a CPU in minutes.

    python -m recipes.sage.modes                         # one seed: about ten minutes on two cores
    python -m recipes.sage.modes --seed 0 --seed 1

Twelve rooms have eight ways out, four of them right, each opened by a key of its own: an answer is a way and
its key. A tiny model first learns (method: sft) to answer with fixed odds: right ways hold 43 % of the mass,
the commonest 28 %, the rarest 2 %. Then every algorithm trains it with the same seed, and two things are
measured by sampling: pass@1, whether an answer is right, and pass@k on tasks that take only one of the four
right ways, which says whether the rare ones can still be found.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

ROOMS, WAYS, KEYS = 12, ("north", "south", "east", "west", "up", "down", "left", "right"), 12
ODDS = (40, 28, 12, 8, 5, 4, 2, 1)
"""Per cent of the start model's answers, from the commonest way of a room to its rarest."""
RIGHT = (1, 3, 4, 6)
"""Ranks of the right ways."""
TIMES, HELD_OUT = ("today", "tomorrow", "soon"), "now"
"""How a room is asked for in training and in evaluation: no evaluation question is ever trained."""
ARMS = {
    "no KL": ["algorithm.guide=null", "algorithm.kl_coef=0"],
    "GRPO-KL": ["algorithm.guide=null"],
    "forward KL": ["algorithm.guide=null", "algorithm.kl_estimator=full_forward"],
    "SAGE branch": [],
    "SAGE token": ["algorithm.guide=token", "algorithm.guide_options={steps: STEPS}"],
}
"""What each algorithm changes in the recipe."""


def main(
    folder: Annotated[Path, typer.Option(help="Where the task, the start model and the runs go.")] = Path("runs/modes"),
    seed: Annotated[list[int], typer.Option(help="Seed of the runs; may be given several times.")] = [0],  # noqa: B006
    steps: Annotated[int, typer.Option(help="Training steps of a run.")] = 40,
) -> None:
    """Trains the start model and every algorithm, prints a table and draws pass_at_k.png."""
    folder = folder.resolve()
    make(folder)
    found: dict[str, list[dict[str, Any]]] = {}
    for number in seed:
        for name, settings in ARMS.items():
            run = f"{name.replace(' ', '_').lower()}-{number}"
            wanted = [setting.replace("STEPS", str(steps)) for setting in settings]
            done = folder / run / "metrics.jsonl"
            if not finished(done, steps):
                hone(folder, "sage/modes_cpu", f"name={run}", f"seed={number}", f"stop.steps={steps}", *wanted)
            lines = [json.loads(line) for line in done.read_text().splitlines()]
            evaluated = [line for line in lines if "eval/any/accuracy" in line]
            found.setdefault("start", []).append(evaluated[0])
            found.setdefault(name, []).append(evaluated[-1])
    show(found)
    draw(found, folder / "pass_at_k.png")
    typer.echo(f"plot: {folder / 'pass_at_k.png'}")


def finished(metrics: Path, steps: int) -> bool:
    """Whether a run of that many steps is there, its last evaluation included."""
    if not metrics.is_file():
        return False
    last = json.loads(metrics.read_text().splitlines()[-1])
    return last["step"] == steps and "eval/any/accuracy" in last


def hone(folder: Path, recipe: str, *settings: str) -> None:
    """Runs ``hone train`` on the task in ``folder``; ends the program if it fails."""
    command = [sys.executable, "-m", "rl", "train", recipe, "--overwrite", f"run_dir={folder}", *settings]
    if subprocess.run(command, cwd=folder, check=False).returncode:
        sys.exit(f"failed: {' '.join(command)}")


def answers(room: int) -> list[str]:
    """The eight answers of a room, from the commonest to the rarest."""
    ways = [WAYS[(room * 3 + rank * 5) % len(WAYS)] for rank in range(len(WAYS))]
    return [f"{way} key{(room + 5 * rank) % KEYS}" for rank, way in enumerate(ways)]


def make(folder: Path) -> None:
    """Task files and the start model; what is there already is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    tuning: list[dict[str, Any]] = []
    train: list[dict[str, Any]] = []
    held_out: list[dict[str, Any]] = []
    each: list[dict[str, Any]] = []
    for room in range(ROOMS):
        said = answers(room)
        right = [said[rank] for rank in RIGHT]
        train += [{"prompt": f"room{room} {time}", "answers": right} for time in TIMES]
        held_out.append({"prompt": f"room{room} {HELD_OUT}", "answers": right})
        each += [{"prompt": f"room{room} {HELD_OUT}", "answers": [answer]} for answer in right]
        for time in (*TIMES, HELD_OUT):
            for answer, odds in zip(said, ODDS, strict=True):
                row = {"prompt": f"room{room} {time}", "completion": answer}
                tuning += [row | {"copy": copy} for copy in range(odds)]
    for name, rows in (("tuning", tuning), ("train", train), ("any", held_out), ("each", each)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if not (folder / "blank" / "config.json").is_file():
        save_model(folder / "blank")
    if not (folder / "start" / "model" / "config.json").is_file():
        hone(folder, "sage/modes_start")


def save_model(folder: Path) -> None:
    """A random two-layer model whose tokens are whole words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    special = ["<pad>", "<end>", "<ask>", "<answer>", "<unknown>"]
    words = [*special, *(f"room{i}" for i in range(ROOMS)), *TIMES, HELD_OUT, *WAYS, *(f"key{i}" for i in range(KEYS))]
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unknown>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="<pad>",
        eos_token="<end>",
        unk_token="<unknown>",
        additional_special_tokens=["<ask>", "<answer>"],
    )
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<ask> ' if m['role'] == 'user' else '<answer> ' }}{{ m['content'] }}"
        "{{ ' ' if m['role'] == 'user' else ' <end>' }}{% endfor %}"
        "{% if add_generation_prompt %}<answer> {% endif %}"
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(words),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=32,
            max_position_embeddings=64,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def accepted(completions: Any, answers: Any, **columns: Any) -> list[float]:
    """1 where the completion is one of the task's answers."""
    texts = [" ".join(str(message["content"]) for message in messages).split() for messages in completions]
    return [float(" ".join(text) in right) for text, right in zip(texts, answers, strict=True)]


def curve(rows: list[dict[str, Any]], source: str) -> dict[int, float]:
    """pass@k of a source by k, mean over seeds."""
    start = f"eval/{source}/pass_at/"
    ks = sorted(int(name.removeprefix(start)) for name in rows[0] if name.startswith(start))
    return {k: sum(row[f"{start}{k}"] for row in rows) / len(rows) for k in ks}


def show(found: dict[str, list[dict[str, Any]]]) -> None:
    table = Table(title="after training, mean over seeds")
    for column in ("", "pass@1", "one way: pass@4", "pass@16", "pass@64"):
        table.add_column(column, justify="left" if not column else "right")
    for name, rows in found.items():
        one, each = curve(rows, "any"), curve(rows, "each")
        table.add_row(name, *(f"{value:.3f}" for value in (one[1], each[4], each[16], each[64])))
    Console().print(table)


def draw(found: dict[str, list[dict[str, Any]]], file: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    FigureCanvasAgg(figure)
    bars, lines = figure.subplots(1, 2)
    bars.barh(list(found), [curve(rows, "any")[1] for rows in found.values()])
    bars.invert_yaxis()
    bars.set_xlabel("pass@1, any right way")
    for name, rows in found.items():
        each = curve(rows, "each")
        lines.plot(list(each), list(each.values()), marker=".", label=name)
    lines.set_xscale("log", base=2)
    lines.set_xlabel("k")
    lines.set_ylabel("pass@k, one way only")
    lines.grid(alpha=0.3)
    lines.legend()
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    typer.run(main)
