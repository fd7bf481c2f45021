"""A GRPO step of Hone beside one of TRL's GRPOTrainer: same model, prompts, group size and updates.

    python benchmarks/against_trl.py                   # lengths as sampled
    python benchmarks/against_trl.py --equal           # every response has the whole budget

Both sample 64 responses of up to 64 tokens (8 prompts x 8) from SmolLM2-135M and make one AdamW update, on
the same two cores, in the same run, one after the other. Rewards are random, so no trajectory is left out on
either side. TRL generates with Transformers: its colocated vLLM mode fails on CPU when it first loads weights.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

REWARD = "import random\n\ndef draw(completions, **_):\n    return [random.random() for _ in completions]\n"
BUDGET = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--equal", action="store_true", help="ignore end-of-sequence tokens")
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prompts = write_tasks(folder)
        ours, our_length = hone(folder, arguments.steps, equal=arguments.equal)
        theirs, their_length = trl(folder, prompts, arguments.steps, equal=arguments.equal)
    print(f"hone: {ours:.1f} s a step, mean length {our_length:.1f}")
    print(f"TRL:  {theirs:.1f} s a step, mean length {their_length:.1f}")
    print(f"speed-up {theirs / ours:.2f} (wanted: at least 2.5 with lengths as sampled)")


def write_tasks(folder: Path) -> list[str]:
    rng = random.Random(0)
    prompts = [f"State the final answer. What is {rng.randint(10, 99)} + {rng.randint(10, 99)}?" for _ in range(256)]
    unique = list(dict.fromkeys(prompts))
    (folder / "tasks.jsonl").write_text("".join(json.dumps({"prompt": p, "answer": ""}) + "\n" for p in unique))
    (folder / "reward.py").write_text(REWARD)
    return unique


def hone(folder: Path, steps: int, *, equal: bool) -> tuple[float, float]:
    """Median seconds of a step, and the mean response length."""
    from rl import Run

    settings = [
        f"run_dir={folder}",
        f"data.sources=[{{path: '{folder}/tasks.jsonl'}}]",
        "tasks_per_step=8",
        "samples_per_task=8",
        "prompt.template=null",
        "eval.sources=[]",
        f"reward={{outcome: null, functions: {{draw: {{fn: '{folder}/reward.py:draw'}}}}}}",
        f"rollout.max_response_tokens={BUDGET}",
        f"rollout.ignore_eos={str(equal).lower()}",
        "trainer.max_tokens_per_microbatch=8192",
        "checkpoint.at_end=false",
        f"stop.steps={steps + 1}",
    ]
    seconds, lengths = [], []
    with Run("grpo/arithmetic_cpu", *settings) as run:
        run.start()
        for number in range(steps + 1):
            began = time.monotonic()
            metrics = run.step()
            if number:
                seconds.append(time.monotonic() - began)
                lengths.append(metrics["response/tokens_mean"])
                assert metrics["train/trajectories"] == 64
                print(f"hone step {number}: {seconds[-1]:.1f} s", flush=True)
    return statistics.median(seconds), statistics.mean(lengths)


def trl(folder: Path, prompts: list[str], steps: int, *, equal: bool) -> tuple[float, float]:
    """The same of TRL."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from rl.config.hardware import dtype_for
    from rl.pretrained import resolve

    times: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            times.append(time.monotonic())

    rows = Dataset.from_dict({"prompt": [[{"role": "user", "content": p}] for p in prompts]})
    config = GRPOConfig(
        output_dir=str(folder / "trl"),
        per_device_train_batch_size=64,
        num_generations=8,
        max_completion_length=BUDGET,
        max_steps=steps + 1,
        learning_rate=1e-6,
        beta=0.0,
        bf16=dtype_for("cpu")[0] == "bfloat16",  # as ours: on cores without bfloat16 it is several times slower
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        generation_kwargs={"min_new_tokens": BUDGET} if equal else None,
    )
    trainer = GRPOTrainer(
        model=resolve("smollm2-135m"),
        reward_funcs=lambda completions, **_: [random.random() for _ in completions],
        args=config,
        train_dataset=rows,
        callbacks=[Clock()],
    )
    trainer.train()
    lengths = [row["completions/mean_length"] for row in trainer.state.log_history if "completions/mean_length" in row]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    for number, gap in enumerate(gaps, start=1):
        print(f"TRL step {number}: {gap:.1f} s", flush=True)
    return statistics.median(gaps), statistics.mean(lengths[1:])


if __name__ == "__main__":
    main()
