"""Combinations of settings that cannot work, refused before anything starts."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from datetime import datetime

from rl.config.deadline import parse_deadline
from rl.config.errors import ConfigError
from rl.config.schema import Config, SourceConfig
from rl.tracking.names import METRICS, describe

Origin = Callable[[str], str]


def check_config(config: Config, origin_of: Origin) -> None:
    """Raises ConfigError for the first impossible combination."""

    def refuse(key: str, message: str) -> None:
        raise ConfigError(f"{key} ({origin_of(key)}): {message}")

    for key, value in (
        ("tasks_per_step", config.tasks_per_step),
        ("samples_per_task", config.samples_per_task),
        ("updates_per_step", config.updates_per_step),
        ("epochs_per_step", config.epochs_per_step),
        ("rollout.workers", config.rollout.workers),
        ("rollout.tensor_parallel", config.rollout.tensor_parallel),
        ("rollout.max_response_tokens", config.rollout.max_response_tokens),
        ("rollout.max_sequences", config.rollout.max_sequences),
        ("trainer.ranks", config.trainer.ranks),
        ("trainer.max_tokens_per_microbatch", config.trainer.max_tokens_per_microbatch),
        ("trainer.logits_chunk", config.trainer.logits_chunk),
        ("prompt.max_tokens", config.prompt.max_tokens),
        ("reward.workers", config.reward.workers),
        ("eval.samples_per_task", config.eval.samples_per_task),
        ("checkpoint.keep", config.checkpoint.keep),
    ):
        if value < 1:
            refuse(key, f"must be at least 1, but is {value}")
    _batch(config, refuse)
    _rollout(config, refuse)
    _trainer(config, refuse)
    for where, sources in (("data", config.data.sources), ("eval", config.eval.sources)):
        _sources(where, sources, refuse)
    _rewards(config, refuse)
    _metrics(config, refuse)
    if config.stop.by is not None:
        try:
            parse_deadline(config.stop.by, now=datetime.now().astimezone(), environ={})
        except (ValueError, OverflowError) as error:
            refuse("stop.by", str(error))
    if not config.name or "/" in config.name or config.name in (".", ".."):
        refuse("name", f"{config.name!r} cannot be the name of a folder")
    if config.offline_options and config.method == "rl":
        refuse("offline_options", "are for method=sft, dpo and reward_model; method=rl does not read them")


def require_complete(config: Config) -> None:
    """Raises ConfigError when a run lacks something that has no default."""
    if not config.model.path:
        raise ConfigError("model.path is not set: a folder in Hugging Face format, a hub id, or smollm2-135m")
    if not config.data.sources:
        raise ConfigError("data.sources is empty: add `data: {sources: [{path: tasks.jsonl}]}`")
    if config.method != "rl":
        if config.stop.steps is None and config.stop.epochs is None:
            raise ConfigError(f"no stop rule: method={config.method} needs stop.steps or stop.epochs")
        return
    if config.algorithm.token_advantage == "distill" and not config.algorithm.teacher:
        raise ConfigError("algorithm.teacher is not set: token_advantage=distill learns from a teacher model")
    rewarded = config.algorithm.advantage != "none" and config.environment == "single_turn"
    if rewarded and not config.reward.functions:
        raise ConfigError(
            "reward.functions is empty: add `reward: {functions: {correct: {fn: exact_match}}}` "
            "or name your own as `path/file.py:function`"
        )
    if config.planner == "dynamic_sampling" and config.reward.outcome is None:
        raise ConfigError(
            "reward.outcome is not set: planner=dynamic_sampling tells right from wrong answers by it; "
            f"name one of {list(config.reward.functions)}"
        )
    stop = config.stop
    if all(rule is None for rule in (stop.steps, stop.epochs, stop.hours, stop.tokens, stop.metric)):
        raise ConfigError("no stop rule: set stop.steps, stop.epochs, stop.hours, stop.tokens or stop.metric")


def _batch(config: Config, refuse: Callable[[str, str], None]) -> None:
    trajectories = config.tasks_per_step * config.samples_per_task
    if trajectories % config.updates_per_step:
        refuse(
            "updates_per_step",
            f"{config.tasks_per_step} tasks x {config.samples_per_task} samples = {trajectories} trajectories "
            f"cannot be split into {config.updates_per_step} equal updates",
        )
    if trajectories // config.updates_per_step < config.trainer.ranks:
        refuse(
            "trainer.ranks", f"an update of {trajectories // config.updates_per_step} trajectories leaves ranks idle"
        )


def _rollout(config: Config, refuse: Callable[[str, str], None]) -> None:
    rollout = config.rollout
    longest = config.prompt.max_tokens + rollout.max_response_tokens
    if rollout.max_model_len is not None and longest > rollout.max_model_len and config.environment == "single_turn":
        refuse(
            "rollout.max_model_len",
            f"prompt.max_tokens + rollout.max_response_tokens = {longest} does not fit {rollout.max_model_len}",
        )
    context = rollout.max_model_len or longest
    if context > config.trainer.max_tokens_per_microbatch:
        refuse(
            "trainer.max_tokens_per_microbatch",
            f"a row may have {context} tokens and must fit one micro-batch of "
            f"{config.trainer.max_tokens_per_microbatch}; raise it or lower the lengths",
        )
    if rollout.temperature <= 0:
        refuse("rollout.temperature", "training needs a temperature above 0; greedy samples are all the same")
    if not 0 < rollout.top_p <= 1:
        refuse("rollout.top_p", "must be above 0 and at most 1")
    truncated = rollout.top_p < 1 or rollout.top_k > 0 or rollout.min_p > 0
    if truncated and not rollout.allow_truncated_sampling:
        refuse(
            "rollout.top_p" if rollout.top_p < 1 else "rollout.top_k" if rollout.top_k else "rollout.min_p",
            "truncated sampling draws from another distribution than the one that is trained; "
            "remove it, or set rollout.allow_truncated_sampling=true",
        )
    if config.device == "cpu" and rollout.tensor_parallel > 1:
        refuse("rollout.tensor_parallel", "an engine on CPU has one rank; use rollout.workers for more engines")
    if config.device == "cpu" and config.sync.transport == "nccl":
        refuse("sync.transport", "nccl needs GPUs; use file, gloo or auto")
    if config.sync.transport == "nccl" and config.colocate:
        refuse("sync.transport", "nccl needs a GPU for each end and colocate shares them; use file or colocate=false")


def _trainer(config: Config, refuse: Callable[[str, str], None]) -> None:
    trainer = config.trainer
    if trainer.zero_stage not in (0, 1, 2, 3):
        refuse("trainer.zero_stage", "must be 0, 1, 2 or 3")
    if trainer.lr < 0:
        refuse("trainer.lr", "must not be negative")
    if trainer.offload and trainer.zero_stage < 2:
        refuse("trainer.offload", "needs trainer.zero_stage 2 or 3")
    if not 0 <= trainer.min_lr_ratio <= 1:
        refuse("trainer.min_lr_ratio", "must be between 0 and 1")
    stop = config.stop
    if trainer.schedule != "constant" and stop.steps is None and stop.epochs is None:
        refuse("trainer.schedule", f"{trainer.schedule} needs an end: set stop.steps or stop.epochs")
    algorithm = config.algorithm
    if algorithm.kl_coef < 0:
        refuse("algorithm.kl_coef", "must not be negative")
    if algorithm.reference_every < 0 or not 0 < algorithm.reference_mix <= 1:
        refuse("algorithm.reference_every", "counts steps, and reference_mix is a share above 0 and at most 1")
    if algorithm.reference_every and algorithm.kl_coef == 0:
        refuse("algorithm.reference_every", "moves the reference of the KL term: set algorithm.kl_coef above 0")
    if algorithm.reference_every and config.model.lora.enabled:
        refuse("algorithm.reference_every", "LoRA's reference is the base model, which does not move; turn LoRA off")


def _sources(where: str, sources: list[SourceConfig], refuse: Callable[[str, str], None]) -> None:
    seen: set[str] = set()
    for i, source in enumerate(sources):
        key = f"{where}.sources.{i}"
        if not source.path:
            refuse(f"{key}.path", "is not set")
        if source.weight <= 0:
            refuse(f"{key}.weight", "must be above 0; remove the source instead")
        if source.holdout is not None and not 0 < source.holdout < 1:
            refuse(f"{key}.holdout", "is a share between 0 and 1")
        if source.part == "holdout" and source.holdout is None:
            refuse(f"{key}.part", "holdout needs the same `holdout` share as the training source")
        if source.name is not None and source.name in seen:
            refuse(f"{key}.name", f"two sources are called {source.name!r}")
        seen.add(source.name or "")


def _rewards(config: Config, refuse: Callable[[str, str], None]) -> None:
    reward = config.reward
    names = list(reward.functions)
    if reward.outcome is not None and reward.outcome not in names:
        refuse("reward.outcome", f"{reward.outcome!r} is none of the rewards {names}")
    for name, function in reward.functions.items():
        if not function.fn:
            refuse(f"reward.functions.{name}.fn", "is not set")
        if function.timeout_s <= 0:
            refuse(f"reward.functions.{name}.timeout_s", "must be above 0")
        if (function.weight_end is None) != (function.weight_steps == 0) or function.weight_steps < 0:
            refuse(f"reward.functions.{name}.weight_steps", "and weight_end make a schedule together: set both")
    for where, sources in (("data", config.data.sources), ("eval", config.eval.sources)):
        for i, source in enumerate(sources):
            for name in source.rewards or ():
                if name not in names:
                    refuse(f"{where}.sources.{i}.rewards", f"{name!r} is none of the rewards {names}")


def _metrics(config: Config, refuse: Callable[[str, str], None]) -> None:
    """Metrics that settings name exist: a misspelt one would never fire, and never rank a checkpoint."""
    named = {}
    if config.stop.metric is not None:
        try:
            named["stop.metric"] = parse_metric_rule(config.stop.metric)[0]
        except ValueError as error:
            refuse("stop.metric", str(error))
    if config.checkpoint.best is not None:
        named["checkpoint.best"] = config.checkpoint.best
    algorithm = config.algorithm
    parts = (config.environment, config.planner, algorithm.objective, algorithm.advantage, algorithm.policy_loss)
    own = any(":" in part for part in parts)  # a user's part may log names of its own
    for key, name in named.items():
        if describe(name) is None and not own:
            near = difflib.get_close_matches(name, METRICS, 1)
            hint = f"did you mean `{near[0]}`?" if near else "docs/metrics.md lists them"
            refuse(key, f"no metric is called {name!r}; {hint}")
        evaluates = config.eval.sources and (config.eval.every or config.eval.at_start or config.eval.at_end)
        if name.startswith("eval/") and config.method == "rl" and not evaluates:
            refuse(key, f"{name} is never measured: set eval.sources, and eval.every or eval.at_end")


def parse_metric_rule(text: str) -> tuple[str, str, float]:
    """``eval/accuracy >= 0.6`` as (name, comparison, bound).

    Raises:
        ValueError: the text is not of that form.
    """
    match = re.fullmatch(r"\s*(\S+)\s*(>=|<=|>|<)\s*([-+0-9.eE]+)\s*", text)
    if match is None:
        raise ValueError(f"{text!r} is not of the form `eval/accuracy >= 0.6`")
    return match[1], match[2], float(match[3])
