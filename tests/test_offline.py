"""`method: sft | dpo | reward_model`: TRL's trainers behind our config, data and run directory."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from rl.checkpoint.export import exported
from rl.config import ConfigError, Resolved, load
from rl.data.examples import read_examples
from rl.offline import refuse_unkept, resume, row_batches, train
from rl.pretrained import resolve
from tests.tiny import tiny_model

COPY = [{"prompt": f"say {c}", "completion": c * 4} for c in "abcdefgh"]
PREFER = [{"prompt": f"say {c}", "chosen": c * 4, "rejected": "?" * 4} for c in "abcdefgh"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def make(folder: Path, model: Path, method: str, rows: list[dict[str, Any]], *settings: str) -> Resolved:
    """A config of a run in ``folder``, its rows in a file there."""
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = [
        *(f"method={method}", "device=cpu", "trainer.dtype=float32", "rollout.dtype=float32"),
        *(f"model.path={model}", f"run_dir={folder / 'runs'}", f"data.sources=[{{path: '{data}'}}]"),
        *("prompt.max_tokens=60", "rollout.max_response_tokens=20", "tasks_per_step=4", "stop.steps=6"),
        *("trainer.lr=3e-3", "trainer.warmup_updates=0"),
    ]
    return load(None, [*own, *settings])


def losses(directory: Any) -> list[float]:
    return [row["train/loss"] for row in directory.metrics() if "train/loss" in row]


def test_sft_learns_and_its_loss_is_that_of_the_answers_tokens(tmp_path: Path, model: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    held = f"eval.sources=[{{path: '{tmp_path / 'rows.jsonl'}'}}]"
    resolved = make(tmp_path, model, "sft", COPY, held, "eval.tasks=3", "eval.every=3", "stop.steps=12")
    directory, outcome = train(resolved, quiet=True)
    rows = directory.metrics()
    evaluations = [row["eval/loss"] for row in rows if "eval/loss" in row]
    assert outcome.step == 12 and [r["step"] for r in rows if "train/loss" in r] == list(range(1, 13))
    assert evaluations[-1] < 0.9 * evaluations[0]

    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    total, count = 0.0, 0
    for row in COPY[:3]:
        asked = tokenizer.apply_chat_template(
            [{"role": "user", "content": row["prompt"]}], add_generation_prompt=True, return_dict=False
        )
        said = tokenizer.apply_chat_template(
            [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["completion"]}],
            return_dict=False,
        )
        logits = network(torch.tensor([said])).logits[0].log_softmax(-1).detach()
        for i in range(len(asked), len(said)):
            total, count = total - float(logits[i - 1, said[i]]), count + 1
    assert evaluations[0] == pytest.approx(total / count, rel=1e-4)

    # The result is a model, which a next run finds by the run's name.
    assert exported(directory.path, "latest") == directory.path / "model"
    trained = AutoModelForCausalLM.from_pretrained(resolve(f"{directory.path}@latest"))
    assert not torch.equal(trained.lm_head.weight, network.lm_head.weight)


def test_dpo_starts_at_log_two_and_prefers_the_chosen(tmp_path: Path, model: Path) -> None:
    directory, _ = train(make(tmp_path, model, "dpo", PREFER, "stop.steps=10"), quiet=True)
    falling = losses(directory)
    assert falling[0] == pytest.approx(math.log(2), abs=1e-4)  # policy and reference are the same
    assert falling[-1] < 0.6
    last = [row for row in directory.metrics() if "offline/rewards/accuracies" in row][-1]
    assert last["offline/rewards/accuracies"] == 1.0


def test_lora_is_merged_and_options_reach_trl(tmp_path: Path, model: Path) -> None:
    def first_margins(beta: float) -> float:
        folder = tmp_path / str(beta)
        folder.mkdir()
        settings = ("model.lora.enabled=true", "model.lora.rank=4", f"offline_options.beta={beta}", "stop.steps=2")
        directory, _ = train(make(folder, model, "dpo", PREFER, *settings), quiet=True)
        names = {p.name for p in (directory.path / "model").iterdir()}
        assert "config.json" in names and not any("adapter" in name for name in names)
        return [r for r in directory.metrics() if "offline/rewards/margins" in r][-1]["offline/rewards/margins"]

    # After one equal update of Adam, the margin is beta times the same difference of log-probabilities.
    assert first_margins(0.2) == pytest.approx(2 * first_margins(0.1), rel=0.05)
    with pytest.raises(ConfigError, match="no_such_thing"):
        train(make(tmp_path, model, "dpo", PREFER, "offline_options.no_such_thing=1"), quiet=True)


def test_a_reward_model_ranks(tmp_path: Path, model: Path) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    directory, _ = train(make(tmp_path, model, "reward_model", PREFER, "stop.steps=12"), quiet=True)
    assert losses(directory)[-1] < losses(directory)[0]
    network = AutoModelForSequenceClassification.from_pretrained(directory.path / "model")
    tokenizer = AutoTokenizer.from_pretrained(directory.path / "model")

    def score(answer: str) -> float:
        messages = [{"role": "user", "content": "say b"}, {"role": "assistant", "content": answer}]
        ids = tokenizer.apply_chat_template(messages, return_dict=False)
        with torch.no_grad():
            return float(network(torch.tensor([ids])).logits[0, 0])

    assert score("bbbb") > score("????")


def test_a_resumed_run_is_the_run(tmp_path: Path, model: Path) -> None:
    whole = make(tmp_path, model, "sft", COPY, "checkpoint.every=2", "name=whole")
    first, _ = train(whole, quiet=True)
    half, _ = train(make(tmp_path, model, "sft", COPY, "checkpoint.every=2", "name=half", "stop.steps=4"), quiet=True)
    rest, outcome = resume(half.path, ("stop.steps=6",), quiet=True)
    assert outcome.step == 6
    assert [row["step"] for row in rest.metrics() if "train/loss" in row] == [1, 2, 3, 4, 5, 6]
    assert losses(rest) == pytest.approx(losses(first), rel=1e-5)
    none, _ = train(make(tmp_path, model, "sft", COPY, "name=none", "stop.steps=1"), quiet=True)
    with pytest.raises(ConfigError, match=r"no checkpoint; set checkpoint\.every"):
        resume(none.path, quiet=True)


@pytest.mark.parametrize(
    ("method", "row", "said"),
    [
        ("sft", {"prompt": "a"}, "row 1: nothing to imitate"),
        ("sft", {"prompt": "a", "completion": " "}, "answer is empty"),
        ("sft", {"messages": [{"role": "user", "content": "a"}]}, "last message must be the assistant's"),
        ("dpo", {"prompt": "a", "chosen": "b"}, "no column 'rejected'"),
        ("reward_model", {"prompt": "a", "chosen": "b", "rejected": "b"}, "the same text"),
    ],
)
def test_rows_that_teach_nothing_are_named(
    tmp_path: Path, model: Path, method: str, row: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        train(make(tmp_path, model, method, [row]), quiet=True)


def test_layouts_of_rows(tmp_path: Path, model: Path) -> None:
    talk = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    for row in (
        {"prompt": "q", "completion": "a"},
        {"messages": talk},
        {"question": "q", "answer": "a"},
        {"prompt": "q", "response": "a"},
    ):
        config = make(tmp_path, model, "sft", [row]).config
        got = read_examples(config, config.data.sources, chat=True)
        assert got == [{"prompt": talk[:1], "completion": talk[1:]}], row
        plain = read_examples(config, config.data.sources, chat=False)
        assert plain == [{"prompt": "q", "completion": "a"}], row
    config = make(tmp_path, model, "dpo", [{"chosen": talk, "rejected": [talk[0], {**talk[1], "content": "b"}]}]).config
    assert read_examples(config, config.data.sources, chat=False) == [{"prompt": "q", "chosen": "a", "rejected": "b"}]


@pytest.mark.parametrize(
    "setting",
    ["trainer.ranks=2", "trainer.zero_stage=2", "stop.tokens=5", "checkpoint.best=eval/accuracy"],
)
def test_what_trl_cannot_keep_is_refused(tmp_path: Path, model: Path, setting: str) -> None:
    with pytest.raises(ConfigError, match=setting.split("=")[0]):
        refuse_unkept(make(tmp_path, model, "sft", COPY, setting).config)


@pytest.mark.parametrize(("rows", "tokens", "expected"), [(12, 400, (4, 3)), (7, 400, (1, 7)), (4, 80, (1, 4))])
def test_row_batches_cover_an_update(
    tmp_path: Path, model: Path, rows: int, tokens: int, expected: tuple[int, int]
) -> None:
    settings = (f"tasks_per_step={rows}", f"trainer.max_tokens_per_microbatch={tokens}")
    assert row_batches(make(tmp_path, model, "sft", COPY, *settings).config) == expected


def test_held_out_examples_are_not_trained(tmp_path: Path, model: Path) -> None:
    held = f"eval.sources=[{{path: '{tmp_path / 'rows.jsonl'}'}}]"
    with pytest.raises(ConfigError, match="every example is also an evaluation example"):
        train(make(tmp_path, model, "sft", COPY, held, "eval.tasks=8"), quiet=True)
