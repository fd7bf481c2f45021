"""`method: sft | dpo | reward_model`: TRL's trainers with our config, data and run directory.

One process. The result is ``runs/NAME/model``, which ``model.path`` of the next run takes; TRL's own
checkpoints are in ``runs/NAME/trainer``.
"""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl.config import Resolved, load_resolved
from rl.config.errors import ConfigError
from rl.config.schema import Config
from rl.tracking.progress import Progress
from rl.tracking.run_directory import RunDirectory
from rl.tracking.tracker import Tracker

NAMES = {
    "loss": "train/loss",
    "grad_norm": "train/grad_norm",
    "learning_rate": "train/lr",
    "epoch": "data/epoch",
    "eval_loss": "eval/loss",
}
"""TRL's metric names and ours; others become ``offline/NAME``."""


@dataclass
class Outcome:
    """How an offline run ended."""

    reason: str
    step: int = 0
    seconds: float = 0.0
    told: bool = False
    tokens_generated: int = 0
    tokens_trained: int = 0


def row_batches(config: Config) -> tuple[int, int]:
    """Rows of a micro-batch, and micro-batches of an update of ``tasks_per_step`` rows."""
    longest = config.prompt.max_tokens + config.rollout.max_response_tokens
    fit = max(1, config.trainer.max_tokens_per_microbatch // longest)
    rows = max(n for n in range(1, min(fit, config.tasks_per_step) + 1) if config.tasks_per_step % n == 0)
    return rows, config.tasks_per_step // rows


def train(resolved: Resolved, *, overwrite: bool = False, quiet: bool = False) -> tuple[RunDirectory, Outcome]:
    """A new run from start to end.

    Raises:
        ConfigError: a setting that TRL's trainers cannot keep, or unreadable data.
    """
    refuse_unkept(resolved.config)
    directory = RunDirectory.create(resolved, overwrite=overwrite)
    with directory:
        return directory, _run(directory, resolved.config, resume=False, quiet=quiet)


def resume(path: Path, overrides: tuple[str, ...] = (), *, quiet: bool = False) -> tuple[RunDirectory, Outcome]:
    """Goes on from the newest checkpoint of TRL's trainer.

    Raises:
        ConfigError: there is none.
    """
    directory = RunDirectory.open(path)
    with directory:
        config = load_resolved(directory.config_path, overrides).config
        refuse_unkept(config)
        if not any((directory.path / "trainer").glob("checkpoint-*")):
            raise ConfigError(f"{path} has no checkpoint; set checkpoint.every, or start again with `hone train`")
        return directory, _run(directory, config, resume=True, quiet=quiet)


def refuse_unkept(config: Config) -> None:
    """Raises ConfigError for settings that mean nothing to TRL's trainers."""
    trainer, stop = config.trainer, config.stop
    for key, value, kept in (
        ("trainer.ranks", trainer.ranks, 1),
        ("trainer.zero_stage", trainer.zero_stage, 0),
        ("trainer.offload", trainer.offload, False),
        ("stop.tokens", stop.tokens, None),
        ("stop.metric", stop.metric, None),
        ("stop.by", stop.by, None),
        ("checkpoint.best", config.checkpoint.best, None),
        ("checkpoint.every_minutes", config.checkpoint.every_minutes, None),
    ):
        if value != kept:
            raise ConfigError(f"{key}: method={config.method} trains in one process through TRL and cannot keep it")
    if len({s.weight for s in config.data.sources}) > 1:
        raise ConfigError(f"data.sources: method={config.method} reads every row once an epoch; remove the weights")


def _run(directory: RunDirectory, config: Config, *, resume: bool, quiet: bool) -> Outcome:
    from datasets import Dataset, disable_progress_bars
    from transformers.utils.logging import disable_progress_bar

    from rl.data.examples import read_examples
    from rl.data.tokens import load_tokenizer

    progress, outcome = Progress(quiet=quiet), Outcome("")
    if quiet or not sys.stderr.isatty():
        disable_progress_bars()
        disable_progress_bar()
    with progress.phase("reading data"):
        tokenizer = load_tokenizer(config.model)
        chat = bool(tokenizer.chat_template)
        rows = read_examples(config, config.data.sources, chat=chat)
        held_out = read_examples(config, config.eval.sources, chat=chat)[: config.eval.tasks]
        prompts = {str(row["prompt"]) for row in held_out}
        kept = [row for row in rows if str(row["prompt"]) not in prompts]
        if not kept:
            raise ConfigError("data.sources: every example is also an evaluation example; none is left")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    with Tracker(directory, config) as tracker, _asked_to_stop() as told:
        with progress.phase("loading the model"):
            trainer = _trainer(
                config,
                directory,
                tokenizer,
                Dataset.from_list(kept),
                Dataset.from_list(held_out) if held_out else None,
                _callback(config, tracker, progress, outcome, told),
            )
        if resume:
            directory.trim_metrics(_last_step(directory.path / "trainer"))
        began = time.monotonic()
        trainer.train(resume_from_checkpoint=resume)
        outcome.seconds, outcome.step = time.monotonic() - began, trainer.state.global_step
        outcome.reason = outcome.reason or f"{outcome.step} updates are done"
        outcome.told = bool(told)
        _save_model(trainer, tokenizer, directory.path / "model")
    return outcome


def _trainer(config: Config, directory: RunDirectory, tokenizer: Any, rows: Any, held_out: Any, callback: Any) -> Any:
    import torch
    import trl
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PrinterCallback

    from rl.pretrained import resolve

    kinds = {
        "sft": (trl.SFTConfig, trl.SFTTrainer, AutoModelForCausalLM, {}),
        "dpo": (trl.DPOConfig, trl.DPOTrainer, AutoModelForCausalLM, {}),
        "reward_model": (trl.RewardConfig, trl.RewardTrainer, AutoModelForSequenceClassification, {"num_labels": 1}),
    }
    arguments, trainer, loader, extra = kinds[config.method]
    try:
        settings = arguments(**_arguments(config, directory, held_out is not None) | config.offline_options)
    except TypeError as error:
        raise ConfigError(f"offline_options: {error} ({arguments.__name__} of trl)") from error
    model = loader.from_pretrained(
        resolve(config.model.path),
        dtype=torch.float32,
        revision=config.model.revision,
        trust_remote_code=config.model.trust_remote_code,
        **extra,
    )
    if model.config.pad_token_id is None:
        model.config.pad_token_id = tokenizer.pad_token_id
    made = trainer(
        model=model,
        args=settings,
        train_dataset=rows,
        eval_dataset=held_out,
        processing_class=tokenizer,
        peft_config=_adapters(config) if config.model.lora.enabled else None,
        callbacks=[callback],
    )
    made.remove_callback(PrinterCallback)  # the callback above says it
    return made


def _arguments(config: Config, directory: RunDirectory, evaluate: bool) -> dict[str, Any]:
    """Our settings by the names of Transformers' TrainingArguments."""
    trainer, (rows, batches) = config.trainer, row_batches(config)
    shapes = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}
    if trainer.min_lr_ratio and trainer.schedule != "cosine":
        raise ConfigError("trainer.min_lr_ratio: TRL's trainers keep it with trainer.schedule=cosine only")
    return dict(
        output_dir=str(directory.path / "trainer"),
        per_device_train_batch_size=rows,
        per_device_eval_batch_size=rows,
        gradient_accumulation_steps=batches,
        max_steps=-1 if config.stop.steps is None else config.stop.steps,
        num_train_epochs=config.stop.epochs or (1 if config.stop.steps is None else math.inf),
        learning_rate=trainer.lr,
        lr_scheduler_type="cosine_with_min_lr" if trainer.min_lr_ratio else shapes[trainer.schedule],
        lr_scheduler_kwargs={"min_lr_rate": trainer.min_lr_ratio} if trainer.min_lr_ratio else {},
        warmup_steps=trainer.warmup_updates,
        adam_beta1=trainer.betas[0],
        adam_beta2=trainer.betas[1],
        adam_epsilon=trainer.eps,
        weight_decay=trainer.weight_decay,
        max_grad_norm=trainer.max_grad_norm or 0.0,
        bf16=trainer.dtype == "bfloat16",
        use_cpu=config.device == "cpu",
        gradient_checkpointing=config.model.gradient_checkpointing,
        max_length=config.prompt.max_tokens + config.rollout.max_response_tokens,
        seed=config.seed,
        data_seed=config.seed if config.data.seed is None else config.data.seed,
        train_sampling_strategy="random" if config.data.shuffle else "sequential",
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        save_strategy="steps" if config.checkpoint.every else "no",
        save_steps=config.checkpoint.every or 1,
        save_total_limit=config.checkpoint.keep,
        eval_strategy="steps" if evaluate and config.eval.every else "no",
        eval_steps=config.eval.every or None,
        eval_on_start=evaluate and config.eval.at_start,
        dataloader_pin_memory=False,
    )


def _adapters(config: Config) -> Any:
    from peft import LoraConfig

    lora = config.model.lora
    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # a float will do
        lora_dropout=lora.dropout,
        target_modules="all-linear" if lora.target_modules == ["all-linear"] else lora.target_modules,
        task_type="SEQ_CLS" if config.method == "reward_model" else "CAUSAL_LM",
    )


def _callback(config: Config, tracker: Tracker, progress: Progress, outcome: Outcome, told: list[int]) -> Any:
    from transformers import TrainerCallback

    class Report(TrainerCallback):
        """Metrics to our files, our lines on the terminal, and the stop rules that TRL lacks."""

        began = time.monotonic()

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            progress.total(state.max_steps, done=state.global_step)

        def on_log(
            self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
        ) -> None:
            numbers = {
                k: float(v)
                for k, v in (logs or {}).items()
                if isinstance(v, (int, float)) and not k.endswith(("runtime", "per_second"))
            }
            named = {NAMES.get(k, f"offline/{k.removeprefix('train_')}"): v for k, v in numbers.items()}
            if "train_loss" in numbers:  # the trainer's summary at its end
                return
            tracker.log(state.global_step, named)
            if "loss" in numbers:
                progress.step(state.global_step, named)

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            hours = config.stop.hours
            if told:
                outcome.reason = "SIGTERM"
            elif hours is not None and time.monotonic() - self.began >= hours * 3600:
                outcome.reason = f"stop.hours = {hours:g} have passed"
            if outcome.reason:
                control.should_training_stop = True
                control.should_save = True

    return Report()


@contextmanager
def _asked_to_stop() -> Iterator[list[int]]:
    """SIGTERM asks for a save and an end after the update in progress."""
    told: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    try:
        yield told
    finally:
        signal.signal(signal.SIGTERM, before)


def _save_model(trainer: Any, tokenizer: Any, folder: Path) -> None:
    model = trainer.accelerator.unwrap_model(trainer.model)
    if hasattr(model, "merge_and_unload"):
        model = model.merge_and_unload()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _last_step(folder: Path) -> int:
    return max(int(p.name.rpartition("-")[2]) for p in folder.glob("checkpoint-*"))
