"""Strict loading: layers, origins, and errors that say what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl.config import ConfigError, load, load_resolved
from rl.config.hardware import cpu_has_bfloat16


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.mark.parametrize("name", sorted(str(p.relative_to(RECIPES).with_suffix("")) for p in RECIPES.rglob("*.yaml")))
def test_shipped_recipes_load_by_name_from_anywhere(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(name).config.model.path


def test_later_layers_win_and_are_named(tmp_path: Path) -> None:
    recipe = write(tmp_path / "r.yaml", "trainer: {lr: 1e-5}\nseed: 3\n")
    found = load(recipe, ["trainer.lr=1e-6"])
    assert found.config.trainer.lr == pytest.approx(1e-6)
    assert isinstance(found.config.trainer.lr, float)
    assert found.origins["trainer.lr"] == "command line"
    assert found.origins["seed"] == str(recipe)
    assert "trainer.eps" not in found.origins


def test_a_group_on_the_command_line_takes_the_place_of_its_section() -> None:
    found = load("sage/modes_cpu", ["algorithm.kl_coef=0.3", "algorithm=grpo"])
    assert found.config.algorithm.guide is None and found.config.algorithm.kl_coef == 0.3
    assert found.origins["algorithm.advantage"] == "group algorithm/grpo"
    with pytest.raises(ConfigError, match=r"no group 'algorithm/sagee'.*sage"):
        load("sage/modes_cpu", ["algorithm=sagee"])
    with pytest.raises(ConfigError, match="model"):
        load("sage/modes_cpu", ["model=runs/x"])


def test_options_go_with_the_part_that_they_were_written_for() -> None:
    assert load("sage/modes_cpu").config.algorithm.guide_options["ratio"] == 0.3
    assert load("sage/modes_cpu", ["algorithm.guide_options.ratio=0.5"]).config.algorithm.guide_options["tau"] == 1.2
    other = load("sage/modes_cpu", ["algorithm.guide=token", "algorithm.guide_options={steps: 40}"])
    assert other.config.algorithm.guide_options == {"steps": 40}
    assert load("sage/modes_cpu", ["algorithm.guide=null"]).config.algorithm.guide_options == {}
    reward = load("grpo/arithmetic_cpu", ["reward.functions.close.fn=last_number"]).config.reward.functions["close"]
    assert reward.options == {}
    same = load("grpo/arithmetic_cpu", ["reward.functions.close.fn=close_number"]).config.reward.functions["close"]
    assert same.options == {"within": 30}


def test_saved_config_gives_the_same_config(tmp_path: Path) -> None:
    first = load("grpo/arithmetic_cpu", ["rollout.stop=['</a>']"])
    again = load_resolved(write(tmp_path / "config.yaml", first.to_yaml()))
    assert again.config == first.config


def test_one_entry_of_a_list_can_be_changed() -> None:
    config = load("grpo/arithmetic_cpu", ["data.sources.0.size=7"]).config
    assert config.data.sources[0].size == 7
    assert config.data.sources[0].name == "sums"


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("trainer.lrr=1", "did you mean `lr`"),
        ("lrr=1", "trainer.lr"),
        ("rollout.n=8", "`samples_per_task`"),
        ("train_batch_size=8", "`tasks_per_step`"),
        ("actor_rollout_ref.rollout.n=8", "another framework's word"),
        ("num_generations=8", "`samples_per_task`"),
        ("trainer.lr=fast", "must be a number"),
        ("deterministic=1", "true or false"),
        ("deterministic='false'", "true or false"),
        ("stop.steps=1.5", "whole number"),
        ("seed=true", "whole number"),
        ("trainer=3", "section"),
        ("algorithm.aggregation=token_meen", "did you mean `token_mean`"),
        ("updates_per_step=7", "cannot be split"),
        ("tasks_per_step=0", "at least 1"),
        ("rollout.top_p=0.9", "allow_truncated_sampling"),
        ("rollout.temperature=0", "temperature above 0"),
        ("sync.transport=nccl", "needs GPUs"),
        ("rollout.max_response_tokens=100000", "max_tokens_per_microbatch"),
        ("reward.outcome=nothing", "none of the rewards"),
        ("--stop.steps=3", "without dashes"),
        ("stop.steps", "not an override"),
        ("stop.metric=eval/accuracy", "of the form"),
        ("stop.metric=eval/acuracy >= 0.5", "did you mean `eval/accuracy`"),
        ("checkpoint.best=val:acuracy", "no metric is called 'val:acuracy'"),
        ("tracking.wandb_key_env=${oc.env:HOME}", "environment variable"),
    ],
)
def test_bad_settings_are_refused_with_advice(override: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load("grpo/arithmetic_cpu", [override])
    assert says in str(caught.value)


def test_a_metric_that_is_never_measured_ranks_nothing() -> None:
    load("grpo/arithmetic_cpu", ["checkpoint.best=eval/accuracy"])
    with pytest.raises(ConfigError, match="never measured"):
        load("grpo/arithmetic_cpu", ["checkpoint.best=eval/accuracy", "eval.sources=[]"])
    load("grpo/arithmetic_cpu", ["checkpoint.best=mine/score", "planner=mine.py:Planner"])


def test_duplicate_keys_and_other_encodings_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="seed"):
        load(write(tmp_path / "d.yaml", "seed: 1\nseed: 2\n"))
    (tmp_path / "latin.yaml").write_bytes("name: é".encode("latin-1"))
    with pytest.raises(ConfigError, match="UTF-8"):
        load(tmp_path / "latin.yaml")
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbfseed: 4\n")
    assert load(tmp_path / "bom.yaml").config.seed == 4


def test_a_missing_recipe_names_a_near_one() -> None:
    with pytest.raises(ConfigError, match="grpo/arithmetic_cpu"):
        load("grpo/arithmetik_cpu")


def test_no_secret_reaches_the_saved_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "canary-6f1d")
    assert "canary-6f1d" not in load("grpo/arithmetic_cpu", ["tracking.wandb=true"]).to_yaml()


def test_auto_dtype_is_settled_once_when_the_config_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl.config.hardware.cpu_has_bfloat16", lambda: False)
    resolved = load(None, ["device=cpu", "rollout.dtype=float16"])
    assert (resolved.config.trainer.dtype, resolved.config.rollout.dtype) == ("float32", "float16")
    assert "no bfloat16" in resolved.origins["trainer.dtype"]
    assert load(None, ["device=gpu"]).config.trainer.dtype == "bfloat16"
    monkeypatch.setattr("rl.config.hardware.cpu_has_bfloat16", lambda: True)
    assert load(None, ["device=cpu"]).config.rollout.dtype == "bfloat16"


@pytest.mark.parametrize(("text", "has"), [("flags\t: fpu avx512_bf16\n", True), ("Features : asimd bf16", True)])
def test_bfloat16_is_read_from_the_processors_flags(tmp_path: Path, text: str, has: bool) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(text)
    assert cpu_has_bfloat16(path) is has


def test_no_bfloat16_flag_is_no_bfloat16(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("model name: bf16 lover\nflags: fpu avx avx2\n")
    assert not cpu_has_bfloat16(path)
    assert not cpu_has_bfloat16(tmp_path / "none")
