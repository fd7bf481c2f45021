"""A reward model in its own process, against Transformers alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from rewards.contract import RewardError
from rewards.model import RewardModel
from rewards.scorer import Scorer
from rl.config.schema import RewardConfig, RewardFunctionConfig
from rl.types import Bundle, Finish, Group, Task, Trajectory
from tests.tiny import tiny_model

TEXTS = ("yes", "a much longer answer that says no", "", "maybe")


def conversation(text: str) -> Trajectory:
    messages = ({"role": "user", "content": "well?"}, {"role": "assistant", "content": text})
    return Trajectory("r", "b", "solution", 0, 0, [], messages, Finish.STOP, 1)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = tmp_path_factory.mktemp("rm")
    base = tiny_model(folder / "base")
    AutoModelForSequenceClassification.from_pretrained(base, num_labels=1).save_pretrained(folder / "rm")
    AutoTokenizer.from_pretrained(base).save_pretrained(folder / "rm")
    return folder / "rm"


def test_scores_are_those_of_single_forward_passes_and_one_process_holds_the_model(classifier: Path) -> None:  # LOSS-26
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    config = RewardFunctionConfig(fn="model", options={"model": str(classifier), "batch": 3, "device": "cpu"})
    scorer = Scorer(RewardConfig(functions={"rm": config}, workers=2), base_dir=Path())
    task = Task("t", ({"role": "user", "content": "well?"},))
    members = [conversation(text) for text in TEXTS]
    before = set(psutil.Process().children(recursive=True))

    async def twice() -> None:
        for _ in range(2):
            await scorer.score(Bundle("b", task, 0, {"s": Group("b", "s", task, 4, members)}))

    try:
        asyncio.run(twice())
        assert len(set(psutil.Process().children(recursive=True)) - before) == 1
    finally:
        scorer.close()
    assert not set(psutil.Process().children(recursive=True)) - before
    tokenizer = AutoTokenizer.from_pretrained(classifier)
    network = AutoModelForSequenceClassification.from_pretrained(classifier, dtype=torch.float32)
    for t in members:
        ids = tokenizer.apply_chat_template([dict(m) for m in t.messages], return_dict=False)
        with torch.no_grad():
            assert t.rewards["rm"] == pytest.approx(float(network(torch.tensor([ids])).logits[0, 0]), abs=1e-5)
    assert len({round(t.rewards["rm"] or 0, 6) for t in members}) == 4


def test_a_model_that_is_none_says_so(tmp_path: Path) -> None:
    model = RewardModel()
    try:
        with pytest.raises(RewardError, match="nothing_here"):
            asyncio.run(model([conversation("x")], model=str(tmp_path / "nothing_here")))
    finally:
        model.close()
