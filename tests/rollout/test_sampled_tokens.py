"""What was sampled is what is trained: ends, cut responses and ids that mean padding elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl.config import load
from rl.rollout.engine import Generation
from rl.rollout.episodes import EpisodeRunner
from rl.training.batch import TrainRow
from rl.training.packed import pack_rows
from rl.types import Finish, PolicyVersion, Request, SamplingParams, Task, Trajectory, VersionSpan
from tests.tiny import tiny_model, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
PAD = TOKENIZER.pad_token_id


class Told:
    """Not an engine: says the ids that it was told."""

    def __init__(self, ids: Sequence[int], finish: Any) -> None:
        self.ids, self.finish = list(ids), finish

    async def generate(self, prompt_ids: Any, params: SamplingParams, *, seed: int, request_id: str) -> Generation:
        spans = (VersionSpan(PolicyVersion(0, 0), 0, len(self.ids)),)
        ids = np.array(self.ids, np.int32)
        return Generation(ids, -np.arange(1, len(ids) + 1, dtype=np.float32), self.finish, spans)


def play(ids: Sequence[int], finish: Any, *, prompt: str = "go") -> Trajectory:
    config = load(None, ["model.path=x", "rollout.max_response_tokens=4"]).config
    runner = EpisodeRunner(Told(ids, finish), config, TOKENIZER)  # type: ignore[arg-type]
    request = Request(
        "r", Task("t", ({"role": "user", "content": prompt},)), "solution", 0, "t#0", 1, (SamplingParams(4),)
    )
    return asyncio.run(runner.run(request))[0]


def packed_targets(trajectory: Trajectory) -> list[int]:
    (segment,) = trajectory.segments
    row = TrainRow(segment, 1.0, 1.0, 0, 0, 0, segment.trained_tokens)
    return pack_rows([row, row], torch.device("cpu")).targets.tolist()


def test_the_sampled_end_is_trained_with_its_log_prob() -> None:  # LOSS-28, LOSS-29
    eos = TOKENIZER.eos_token_id
    made = play([7, 8, eos], "stop")
    (segment,) = made.segments
    assert segment.token_ids[segment.loss_mask].tolist() == [7, 8, eos] and made.finish is Finish.STOP
    assert segment.logprobs is not None and segment.logprobs[segment.loss_mask].tolist() == [-1, -2, -3]
    assert packed_targets(made) == [7, 8, eos] * 2


def test_the_id_of_padding_is_a_token_like_others() -> None:  # LOSS-28
    made = play([7, PAD, 8, PAD], "length", prompt="go <|endoftext|>")
    (segment,) = made.segments
    assert segment.token_ids[segment.loss_mask].tolist() == [7, PAD, 8, PAD]
    assert packed_targets(made) == [7, PAD, 8, PAD] * 2
    row = pack_rows([TrainRow(segment, 1.0, 1.0, 0, 0, 0, 4)], torch.device("cpu"))
    assert len(row.inputs(planned=True).input_ids) == len(segment.token_ids)  # attended, whatever its id


def test_nothing_is_added_to_a_cut_response() -> None:  # LOSS-30
    made = play([5, 6, 7, 8], "length")
    assert made.segments[0].token_ids[made.segments[0].loss_mask].tolist() == [5, 6, 7, 8]
    assert made.finish is Finish.LENGTH and made.finish.truncated


@pytest.mark.parametrize("end", [0, 1])
def test_every_end_of_the_generation_config_ends(end: int, tmp_path: Path) -> None:  # LOSS-31
    from transformers import GenerationConfig

    from rl.data.tokens import eos_ids, load_tokenizer
    from rl.rollout.hf_engine import HfEngine

    model = tiny_model(tmp_path, "llama")
    config = load(None, [f"model.path={model}", "rollout.dtype=float32"]).config

    async def draw(*stops: int) -> list[int]:
        engine = HfEngine(config, trained=False)
        await engine.start()
        params = SamplingParams(max_tokens=12, stop_token_ids=stops)
        return (await engine.generate([65, 66, 67], params, seed=1, request_id="r")).token_ids.tolist()

    free = asyncio.run(draw())
    ends = [free[3], free[6]]
    assert free.index(ends[0]) < free.index(ends[1])
    ends = ends if end == 0 else [ends[1], 300]
    GenerationConfig(eos_token_id=ends, pad_token_id=0).save_pretrained(model)
    known = eos_ids(config.model, load_tokenizer(config.model))
    assert set(ends) <= set(known)
    stops = [stop for stop in known if stop in ends]
    made = asyncio.run(draw(*stops))
    assert made == free[: min(free.index(e) for e in ends if e in free) + 1]
