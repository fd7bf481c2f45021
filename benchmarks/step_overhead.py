"""A whole step over its floor: raw vLLM generation plus raw DeepSpeed forward, backward and update.

    python benchmarks/step_overhead.py                # the main job's model and sizes, rounds in turns

The floor runs in this process on the very tokens of each of Hone's steps: `vllm.LLM` samples the same
prompts to the same lengths, with neither seeds nor log-probs; a DeepSpeed engine around the plain
Transformers model runs the same packed tokens with cross entropy on the sampled ones. A random reward
keeps every trajectory in training.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

REWARD = """
import random

def draw(completions, **_):
    return [random.random() for _ in completions]
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--recipe", default="grpo/arithmetic_cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    from rl import Run

    with tempfile.TemporaryDirectory() as folder:
        reward = Path(folder) / "reward.py"
        reward.write_text(REWARD)
        overrides = [
            f"run_dir={folder}",
            f"reward={{outcome: null, functions: {{draw: {{fn: '{reward}:draw'}}}}}}",
            "eval.sources=[]",
            "stop.steps=1000",
            *arguments.overrides,
        ]
        with Run(arguments.recipe, *overrides) as run:
            run.start()
            floor = Floor(run.config)
            captured = Capture(run.session)
            ratios = []
            for number in range(arguments.rounds + 1):
                began = time.monotonic()
                metrics = run.step()
                ours = time.monotonic() - began
                generate, train = floor.generate(captured.rows), floor.train(captured.rows)
                if number == 0:  # first calls compile and allocate
                    continue
                ratios.append(ours / (generate + train))
                print(
                    f"round {number}: hone {ours:.2f} s (generate {metrics['time/generate']:.2f}, train "
                    f"{metrics['time/train']:.2f}, sync {metrics['time/sync']:.2f}); floor {generate + train:.2f} s "
                    f"(generate {generate:.2f}, train {train:.2f}); ratio {ratios[-1]:.3f}",
                    flush=True,
                )
            print(f"median ratio over {len(ratios)} rounds: {statistics.median(ratios):.3f} (wanted: at most 1.15)")


class Capture:
    """Keeps the rows of the last step that went to the trainer."""

    def __init__(self, session: Any) -> None:
        self.rows: list[Any] = []
        train = session.trainer.train

        async def keep(batches: Any) -> Any:
            self.rows = [row for batch in batches for row in batch.rows]
            return await train(batches)

        session.trainer.train = keep


class Floor:
    """The two engines without a framework around them."""

    def __init__(self, config: Any) -> None:
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        os.environ["DS_ACCELERATOR"] = "cpu"
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29811", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
        import deepspeed
        import torch
        from vllm import LLM

        from rl.pretrained import resolve
        from rl.training.model import load_model

        self.config = config
        self.llm = LLM(
            model=resolve(config.model.path),
            dtype=config.rollout.dtype,
            max_model_len=config.prompt.max_tokens + config.rollout.max_response_tokens,
            max_num_seqs=config.rollout.max_sequences,
            kv_cache_memory_bytes=int(config.rollout.cache_gb * 2**30),
            enforce_eager=True,
        )
        torch.set_num_threads(os.cpu_count() or 1)
        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
        model = load_model(config.model)
        settings = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "steps_per_print": 10**9}
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
        self.engine, *_ = deepspeed.initialize(
            model=model, optimizer=optimizer, config=settings | {"zero_allow_untested_optimizer": True}
        )

    def generate(self, rows: list[Any]) -> float:
        from vllm import SamplingParams

        prompts, sampling = [], []
        for row in rows:
            start = int(row.segment.loss_mask.argmax())
            prompts.append({"prompt_token_ids": row.segment.token_ids[:start].tolist()})
            length = int(row.segment.loss_mask.sum())
            sampling.append(SamplingParams(max_tokens=length, ignore_eos=True, temperature=1.0, detokenize=False))
        began = time.monotonic()
        self.llm.generate(prompts, sampling, use_tqdm=False)
        return time.monotonic() - began

    def train(self, rows: list[Any]) -> float:
        import torch
        import torch.nn.functional as F

        from rl.packing import pack
        from rl.training.attention import make_plan
        from rl.training.packed import pack_rows

        device = torch.device("cpu")
        bins = pack([len(row.segment.token_ids) for row in rows], self.config.trainer.max_tokens_per_microbatch)
        began = time.monotonic()
        for number, members in enumerate(bins):
            packed = pack_rows([rows[i] for i in members], device)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.config.trainer.dtype == "bfloat16"):
                inputs = packed.inputs(planned=False)
                hidden = self.engine.module.base_model(
                    input_ids=inputs.input_ids[None],
                    position_ids=inputs.position_ids[None],
                    use_cache=False,
                    hone_plan=make_plan(_segments(packed), device),
                ).last_hidden_state
                logits = self.engine.module.get_output_embeddings()(hidden[0, inputs.predict])
                loss = F.cross_entropy(logits.float(), packed.targets)
            if number + 1 < len(bins):
                loss.backward()
            else:
                self.engine.backward(loss)
        self.engine.step()
        return time.monotonic() - began


def _segments(packed: Any) -> list[Any]:
    """Every segment with its own copy of the prompt, as a plain trainer has it."""
    from rl.training.attention import Tree

    bounds = packed.cu_seqlens.tolist()
    return [Tree(start, end - start) for start, end in itertools.pairwise(bounds)]


if __name__ == "__main__":
    main()
