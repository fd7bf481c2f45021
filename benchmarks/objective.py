"""What the objective costs beside the model's forward and backward, and the memory of its logits.

    python benchmarks/objective.py                    # time, SmolLM2-135M, vocabulary 49152
    python benchmarks/objective.py --memory           # peak memory, 16k tokens at vocabulary 151936

Time: advantages, policy loss, KL, guide and metrics of one update over the forward and backward of the
same tokens. Entropy and full-vocabulary terms run inside the chunked logits pass and are shown apart.
Memory: peak above what was held before, in chunks of float32 logits, of the chunked pass with backward.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from rl.config.schema import AlgorithmConfig, Config
from rl.objectives import build
from rl.objectives.aggregate import token_weights
from rl.objectives.base import Objective, TokenBatch
from rl.objectives.joined import prepare
from rl.objectives.kl import ENTROPY, VOCAB_KL
from rl.training.batch import Counts
from rl.training.logprobs import chunked_logprobs

SETTINGS = {
    "grpo": {},
    "grpo + k3": {"kl_coef": 0.05},
    "sage branch": {"kl_coef": 0.05, "guide": "branch", "correction": "tis_token"},
    "sage token": {"kl_coef": 0.05, "guide": "token", "correction": "tis_token"},
    "gspo": {"policy_loss": "gspo"},
    "reinforce++": {"advantage": "raw", "token_advantage": "returns"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--tokens", type=int, default=None)
    parser.add_argument("--chunk", type=int, default=1024)
    arguments = parser.parse_args()
    if arguments.memory:
        memory(arguments.tokens or 16384, arguments.chunk)
    else:
        speed(arguments.tokens or 1024, arguments.chunk)


def speed(tokens: int, chunk: int) -> None:
    from rl.pretrained import resolve
    from rl.training.model import PolicyModule, load_model
    from rl.training.packed import pack_tokens

    config = Config()
    config.model.path = str(resolve("smollm2-135m"))
    config.trainer.logits_chunk = chunk
    module = PolicyModule(load_model(config.model), config)
    segments = max(1, tokens // 64)
    generator = np.random.default_rng(0)
    rows = [generator.integers(0, 49152, 64) for _ in range(segments)]
    packed = pack_tokens(rows, [np.arange(64) > 0] * segments, [1.0] * segments, torch.device("cpu"))

    def step(terms: tuple = ()) -> None:
        logprobs, _, extra = module(packed, terms)
        (logprobs.sum() + sum(v.sum() for v in extra.values())).backward()
        module.zero_grad(set_to_none=True)

    base = best(step, 3)
    print(f"forward and backward of {len(packed.chosen)} tokens: {base:.3f} s")
    print(f"with the entropy bonus in the logits pass: x{best(lambda: step((ENTROPY,)), 2) / base:.3f}")
    for name, settings in SETTINGS.items():
        goal = build(AlgorithmConfig(**settings), max_response_tokens=64)  # type: ignore[arg-type]
        spent = best(lambda goal=goal: objective_once(goal, segments), 20)
        print(f"{name:>12}: {spent * 1e3:7.2f} ms, {100 * spent / base:.2f} % of forward and backward")


def objective_once(goal: Objective, segments: int) -> None:
    """One update's objective over ``segments`` rows of 64 tokens, gradient in the log-probs included."""
    batch = token_batch(segments)
    ((batch.advantages, batch.extra),) = prepare(goal, [batch], lambda x: x)
    out = goal.token_loss(batch)
    per_row = torch.full((segments,), 63.0)
    weights = token_weights(
        goal.aggregation,
        batch.mask,
        batch.cu_seqlens,
        trajectory_tokens=per_row,
        group_tokens=per_row,
        counts=Counts(63 * segments, segments, segments),
        constant_length=64,
    )
    (out.loss * weights).sum().backward()


def token_batch(segments: int) -> TokenBatch:
    generator = torch.Generator().manual_seed(0)
    total = 64 * segments

    def noise() -> torch.Tensor:
        return -torch.rand(total, generator=generator)

    mask = torch.ones(total)
    mask[::64] = 0
    return TokenBatch(
        logprobs=noise().requires_grad_(),
        mask=mask,
        advantages=noise(),
        rollout_logprobs=noise(),
        cu_seqlens=torch.arange(0, total + 1, 64, dtype=torch.int32),
        sample_ids=torch.arange(segments),
        kind_ids=torch.zeros(segments, dtype=torch.int64),
        temperature=torch.ones(segments),
        step=1,
        run_seed=0,
        old_logprobs=noise(),
        ref_logprobs=noise(),
        entropy=-2 * noise(),
        group_ids=torch.zeros(segments, dtype=torch.int64),
        groups=1,
    )


def memory(tokens: int, chunk: int, vocabulary: int = 151936, width: int = 64) -> None:
    unit = chunk * vocabulary * 4
    print(f"{tokens} tokens, vocabulary {vocabulary}: a chunk of {chunk} positions is {unit / 2**20:.0f} MiB")
    torch.manual_seed(0)
    head = torch.nn.Linear(width, vocabulary, bias=False)
    reference = torch.nn.Linear(width, vocabulary, bias=False)
    head.weight.grad = torch.zeros_like(head.weight)
    hidden = torch.randn(tokens, width, requires_grad=True)
    hidden.grad = torch.zeros_like(hidden)
    targets, temperature = torch.randint(vocabulary, (tokens,)), torch.ones(tokens)
    cases = (("log-probs and entropy", ()), ("entropy bonus", (ENTROPY,)), *VOCAB_KL_CASES)
    for name, terms in cases:

        def run(terms: tuple = terms) -> None:
            logprobs, _, extra = chunked_logprobs(
                hidden,
                head,
                targets,
                temperature,
                chunk=chunk,
                terms=terms,
                ref_hidden=hidden.detach() if any(t.needs_ref for t in terms) else None,
                ref_head=reference,
            )
            (logprobs.sum() + sum(v.sum() for v in extra.values())).backward()

        began = time.monotonic()
        print(f"{name:>22}: {peak_above(run) / unit:.2f} chunks, {time.monotonic() - began:.0f} s", flush=True)


VOCAB_KL_CASES = tuple((name, (term,)) for name, term in VOCAB_KL.items())


def peak_above(run: Callable[[], None]) -> int:
    """Bytes of resident memory at the peak of ``run`` above those before it (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    run()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def best(run: Callable[[], None], times: int) -> float:
    """Least seconds of several runs."""
    spent = []
    for _ in range(times + 1):
        began = time.monotonic()
        run()
        spent.append(time.monotonic() - began)
    return min(spent[1:])


if __name__ == "__main__":
    main()
