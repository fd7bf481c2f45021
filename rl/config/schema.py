"""Every setting of a run, as typed dataclasses.

This is the only place where a setting's name, type, default and meaning are stated: the loader
checks against it and the configuration reference is generated from it. Imports no torch, Ray or vLLM.

The batch words, defined once:

* ``tasks_per_step`` x ``samples_per_task`` trajectories are sampled in a step;
* they are split into ``updates_per_step`` updates (optimizer steps), and the whole batch is
  repeated ``epochs_per_step`` times;
* an update runs as packed micro-batches of at most ``trainer.max_tokens_per_microbatch`` tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def doc(default: Any, help: str, choices: tuple[str, ...] = ()) -> Any:
    """A dataclass field with its default, its meaning and (for closed sets) its values."""
    metadata = {"help": help, "choices": choices}
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    if isinstance(default, type):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class LoraConfig:
    """Low-rank adapters through peft."""

    enabled: bool = doc(False, "Train low-rank adapters instead of all weights.")
    rank: int = doc(16, "Rank of the adapters.")
    alpha: float = doc(32.0, "Scale numerator; the adapter's effect is alpha / rank.")
    dropout: float = doc(0.0, "Dropout on the adapter's input; keep 0 for exact ratios.")
    target_modules: list[str] = doc(
        ["all-linear"], "Module names, or `all-linear` for every linear layer but the head."
    )


@dataclass
class ModelConfig:
    """The policy."""

    path: str = doc("", "Folder in Hugging Face format, hub id, or `smollm2-135m` for the packaged small model.")
    revision: str | None = doc(None, "Hub revision.")
    trust_remote_code: bool = doc(False, "Run Python code that ships with the model. Off is safe.")
    chat_template: str | None = doc(None, "Path to a Jinja chat template that replaces the model's.")
    attention: str = doc(
        "packed",
        "Attention of the trainer. `packed` runs each segment of a packed row on its own.",
        ("packed", "sdpa", "eager", "flash_attention_2"),
    )
    gradient_checkpointing: bool = doc(False, "Recompute layers in the backward pass to save memory.")
    lora: LoraConfig = doc(LoraConfig, "Low-rank adapters.")


@dataclass
class SourceConfig:
    """One stream of tasks."""

    path: str = doc(
        "",
        "`.jsonl` or `.parquet` file, dataset folder, hub id, or `reasoning_gym:NAME`.",
    )
    name: str | None = doc(None, "Name in metrics; the path's stem when not given.")
    weight: float = doc(1.0, "Share in the mixture, relative to the other sources.")
    split: str = doc("train", "Split of a Hugging Face dataset.")
    preset: str = doc(
        "auto",
        "Column layout of the rows.",
        ("auto", "plain", "messages", "verl", "trl", "openrlhf"),
    )
    prompt: str | None = doc(None, "Column that holds the prompt (text or messages).")
    columns: dict[str, str] = doc({}, "Rename columns: new name -> name in the file.")
    rewards: list[str] | None = doc(None, "Names of the rewards that score this source; all when not given.")
    options: dict[str, Any] = doc({}, "Options of the source: a generator's parameters, for example.")
    size: int | None = doc(None, "How many tasks a generator makes, or at most this many rows.")
    seed: int = doc(0, "Seed of a generator.")
    holdout: float | None = doc(
        None,
        "Share of distinct questions kept out of training, chosen by a hash of the question.",
    )
    part: str = doc(
        "train",
        "Which part of a held-out split this source is.",
        ("train", "holdout"),
    )


@dataclass
class PromptConfig:
    """From a row to the policy's prompt."""

    system: str | None = doc(None, "System message put before each prompt.")
    template: str | None = doc(
        None, "Text with `{column}` fields that makes the user message; `{prompt}` is the row's prompt."
    )
    chat_template_kwargs: dict[str, Any] = doc(
        {}, "Passed to the chat template, for example `{enable_thinking: false}`."
    )
    max_tokens: int = doc(1024, "Longest prompt in tokens.")
    overlong: str = doc("error", "What happens to a longer prompt.", ("error", "drop"))


@dataclass
class DataConfig:
    """Where tasks come from."""

    sources: list[SourceConfig] = doc([], "Training sources, mixed by weight.")
    shuffle: bool = doc(True, "Shuffle each epoch; the order is a function of (seed, epoch).")
    seed: int | None = doc(None, "Seed of the order; the run's seed when not given.")


@dataclass
class RolloutConfig:
    """Sampling and the engines that do it."""

    engine: str = doc(
        "vllm",
        "`vllm`, or `hf`: Transformers, exact and slow, the reference for tests.",
        ("vllm", "hf"),
    )
    workers: int = doc(1, "Number of engines.")
    tensor_parallel: int = doc(1, "GPUs of one engine.")
    dtype: str = doc(
        "auto",
        "Number format of the engine; `auto` is bfloat16 where the hardware has it, else float32.",
        ("auto", "bfloat16", "float16", "float32"),
    )
    max_response_tokens: int = doc(1024, "Response budget of one turn, in tokens.")
    max_model_len: int | None = doc(None, "Context of the engine; prompt + response when not given.")
    temperature: float = doc(1.0, "Sampling temperature; the trainer applies the same.")
    top_p: float = doc(1.0, "Nucleus; below 1 needs `allow_truncated_sampling`.")
    top_k: int = doc(0, "0 is off; above needs `allow_truncated_sampling`.")
    min_p: float = doc(0.0, "0 is off; above needs `allow_truncated_sampling`.")
    stop: list[str] = doc([], "Stop strings; the tokens that complete one are kept.")
    ignore_eos: bool = doc(False, "Always sample the whole budget: for benchmarks.")
    allow_truncated_sampling: bool = doc(False, "Permit top_p, top_k and min_p although they bias the ratio.")
    max_sequences: int = doc(64, "Sequences that one engine runs at once.")
    cache_gb: float = doc(1.0, "Memory for the key-value cache of one CPU engine.")
    gpu_memory_utilization: float = doc(0.85, "Share of a GPU that one engine takes.")
    enforce_eager: bool = doc(True, "No CUDA graphs.")
    threads: int | None = doc(None, "CPU threads of one engine; all cores when not given.")
    engine_options: dict[str, Any] = doc({}, "Passed to vLLM's AsyncEngineArgs unchanged.")
    start_timeout_s: float = doc(600.0, "Longest start of an engine.")
    timeout_s: float = doc(1800.0, "Longest wait for the samples of one step.")
    episode_timeout_s: float = doc(600.0, "Deadline of one episode.")


@dataclass
class TrainerConfig:
    """Optimisation and the DeepSpeed ranks that do it."""

    ranks: int = doc(1, "Number of DeepSpeed ranks.")
    zero_stage: int = doc(
        0, "ZeRO stage: what is sharded over the ranks (0 nothing, 1 optimizer, 2 gradients, 3 weights)."
    )
    dtype: str = doc(
        "auto",
        "Number format of forward and backward, `auto` as for the engine; the master weights stay float32.",
        ("auto", "bfloat16", "float32"),
    )
    offload: bool = doc(False, "Keep the optimizer's state in host memory (ZeRO 2 and 3 on GPUs).")
    lr: float = doc(1e-6, "Peak learning rate.")
    schedule: str = doc(
        "constant", "Shape after warm-up, over the true number of updates.", ("constant", "linear", "cosine")
    )
    min_lr_ratio: float = doc(0.0, "The schedule ends at lr times this.")
    warmup_updates: int = doc(0, "Updates of linear warm-up.")
    betas: tuple[float, float] = doc((0.9, 0.999), "AdamW's decay rates.")
    eps: float = doc(1e-8, "AdamW's epsilon.")
    weight_decay: float = doc(0.0, "AdamW's decoupled weight decay.")
    max_grad_norm: float | None = doc(1.0, "Clip the global gradient norm; null is off.")
    max_tokens_per_microbatch: int = doc(4096, "Tokens that one forward and backward sees, packed.")
    logits_chunk: int = doc(1024, "Positions whose logits exist at once.")
    threads: int | None = doc(None, "CPU threads of one rank; all cores / ranks when not given.")
    deepspeed: dict[str, Any] = doc({}, "Merged over the DeepSpeed config that Hone writes.")
    timeout_s: float = doc(3600.0, "Longest training phase of one step.")
    max_skipped_steps: int = doc(
        5, "End the run after this many steps in a row that made no update, since their gradients were not finite."
    )
    max_restarts: int = doc(3, "When a rank dies, start all again from the last checkpoint; this often.")


@dataclass
class AlgorithmConfig:
    """The objective, assembled from parts by name. A preset in `configs/algorithm/` fills it."""

    objective: str = doc(
        "composed",
        "`composed` from the parts below, a registry name, `package.module:attr` or `file.py:attr`.",
    )
    options: dict[str, Any] = doc({}, "Keyword arguments of a user-defined objective.")
    advantage: str = doc("group_norm", "Advantage estimator (`hone config parts` lists them).")
    advantage_options: dict[str, Any] = doc(
        {}, "Keyword arguments of the estimator, for example `{ddof: 1, eps: 1e-6}`."
    )
    policy_loss: str = doc("ppo_clip", "Policy loss.")
    policy_loss_options: dict[str, Any] = doc(
        {}, "Keyword arguments of the policy loss, for example `{clip_low: 0.2, clip_high: 0.28}`."
    )
    aggregation: str = doc(
        "token_mean",
        "How token losses become one number, over the global batch.",
        ("token_mean", "sequence_mean", "constant_length", "group_mean"),
    )
    constant_length: int | None = doc(None, "Divisor of `constant_length`; max_response_tokens when not given.")
    kl_coef: float = doc(0.0, "Weight of the KL term; 0 needs no reference model.")
    kl_estimator: str = doc(
        "k3",
        "Estimator of the KL term; docs/algorithms.md says what each one's gradient optimises. The last two sum "
        "over the whole vocabulary: KL(policy || reference) and KL(reference || policy).",
        ("k1", "k2", "k3", "full_reverse", "full_forward"),
    )
    kl_in: str = doc("loss", "Where the KL term goes; `reward` needs k1.", ("loss", "reward"))
    reference_every: int = doc(
        0, "Steps after which the reference moves towards the policy; 0 keeps it at the start model."
    )
    reference_mix: float = doc(1.0, "Share of the policy in the reference that `reference_every` makes.")
    guide: str | None = doc(None, "SAGE: the guide that reshapes the reference of the KL term.")
    guide_options: dict[str, Any] = doc({}, "Keyword arguments of the guide, for example `{ratio: 0.3, tau: 1.2}`.")
    token_advantage: str = doc(
        "broadcast", "From a trajectory's advantage to its tokens: `broadcast`, `gae`, `returns`, `distill`."
    )
    token_advantage_options: dict[str, Any] = doc(
        {}, "Keyword arguments of it, for example `{gamma: 1.0, lam: 0.95}` for `gae`."
    )
    teacher: str | None = doc(None, "Model to distil from, with the policy's tokenizer: `token_advantage: distill`.")
    value_coef: float = doc(0.5, "Weight of the value loss, where `token_advantage` learns values.")
    value_clip: float | None = doc(None, "Keep new values within this of the old ones in the value loss.")
    critic_warmup_steps: int = doc(0, "First steps that train the value head alone.")
    correction: str = doc(
        "none",
        "Correction of the gap between rollout and trainer: `tis` truncates the weight, `mis` masks what is outside.",
        ("none", "tis_token", "tis_sequence", "mis_token", "mis_sequence"),
    )
    correction_options: dict[str, Any] = doc({}, "Bounds of the correction: `{cap: 2.0}` or `{low: 0.5, high: 2.0}`.")
    entropy_coef: float = doc(0.0, "Weight of the entropy bonus; where it starts when `entropy_target` is set.")
    entropy_target: float | None = doc(
        None, "Adaptive bonus: its weight rises while the entropy (nats) is below this, and it acts only then."
    )
    entropy_step: float = doc(0.005, "Change of the adaptive weight in a step.")
    top_entropy_share: float = doc(
        1.0, "Policy loss only on this share of the batch's tokens, those of highest entropy."
    )
    overlong_buffer: int = doc(
        0, "Soft overlong penalty: tokens before the response budget over which it falls from 0 to -overlong_factor."
    )
    overlong_factor: float = doc(1.0, "Size of the soft overlong penalty.")
    zero_advantage: str = doc(
        "keep",
        "Trajectories of advantage 0: counted, left out where their whole group has none, or left out.",
        ("keep", "drop_groups", "drop"),
    )
    mask_truncated: bool = doc(False, "Leave trajectories that overran their budget out of numerator and denominator.")


@dataclass
class RewardFunctionConfig:
    """One named reward."""

    fn: str = doc(
        "", "Registry name, `package.module:attr`, `path/file.py:attr`, or `environment`: its own reward of this name."
    )
    weight: float = doc(1.0, "Weight in the total.")
    weight_end: float | None = doc(None, "Weight from step `weight_steps` on, reached in a line from `weight`.")
    weight_steps: int = doc(0, "Steps over which the weight goes to `weight_end`.")
    options: dict[str, Any] = doc({}, "Keyword arguments given on each call.")
    timeout_s: float = doc(30.0, "Deadline of scoring one trajectory.")
    on_sample_error: str = doc(
        "value:0",
        "When the graded text caused a timeout, crash or memory limit: `value:x`, `drop` or `stop_run`.",
    )
    on_infra_error: str = doc(
        "retry:2",
        "When the infrastructure failed: `retry:n` (then drop), `drop`, `value:x` or `stop_run`.",
    )


@dataclass
class RewardConfig:
    """What is rewarded."""

    functions: dict[str, RewardFunctionConfig] = doc({}, "Named rewards.")
    outcome: str | None = doc(None, "Name of the reward that says whether the answer is right.")
    outcome_threshold: float | None = doc(None, "Outcome is 1 at or above this; the raw value when not given.")
    workers: int = doc(2, "Processes that score.")
    memory_mb: int | None = doc(None, "Address space of a scoring process; passing it counts as a sample error.")
    check_gold: int = doc(0, "Before the run, try each reward on the gold answers of this many tasks.")
    gold_column: str = doc("answer", "Column with the gold answer, for `check_gold`.")


@dataclass
class EvalConfig:
    """Evaluation during the run, on the same engines."""

    sources: list[SourceConfig] = doc([], "Held-out sources.")
    every: int = doc(0, "Steps between evaluations; 0 is never but at start and end.")
    at_start: bool = doc(True, "Evaluate before the first step.")
    at_end: bool = doc(True, "Evaluate after the last step.")
    tasks: int | None = doc(None, "At most this many tasks; all when not given.")
    samples_per_task: int = doc(1, "Samples of one task.")
    temperature: float = doc(0.0, "0 is greedy.")
    top_p: float = doc(1.0, "Nucleus.")
    max_response_tokens: int | None = doc(None, "Response budget; that of training when not given.")


@dataclass
class SyncConfig:
    """How new weights reach the engines."""

    transport: str = doc(
        "auto",
        "`file` writes to shared memory or a folder that all machines see. `nccl` broadcasts between GPUs of their "
        "own, `gloo` between CPUs. `auto` is `nccl` on GPUs without `colocate`, else `file`.",
        ("auto", "file", "nccl", "gloo"),
    )
    dir: str | None = doc(None, "Folder of the `file` transport; /dev/shm when it has room.")
    probe: bool = doc(True, "At start, prove that every tensor reaches the engines.")
    probe_max: float = doc(3e-4, "Largest log-prob difference that the float32 probe allows.")
    probe_mean: float = doc(0.1, "Largest mean log-prob difference that the bfloat16 probe allows.")
    timeout_s: float = doc(600.0, "Longest publish.")


@dataclass
class CheckpointConfig:
    """Saving the whole state of a run."""

    every: int = doc(0, "Steps between checkpoints; 0 saves only at the end.")
    every_minutes: float | None = doc(None, "Also save when this much time passed since the last save.")
    keep: int = doc(2, "Newest checkpoints kept.")
    keep_every: int = doc(0, "Keep those of every n-th step too; 0 is off.")
    best: str | None = doc(None, "Metric by which the best are kept too, for example `eval/accuracy`.")
    best_mode: str = doc("max", "Which value of `best` is better.", ("max", "min"))
    keep_best: int = doc(1, "How many of the best are kept.")
    at_end: bool = doc(True, "Save after the last step.")
    copy_to: str | None = doc(
        None, "Also copy checkpoints to this folder of runs: `s3://bucket/runs`, `gs://...`, any fsspec URL."
    )
    background: bool = doc(
        True, "Write the files while training goes on; needs main memory for a copy of model and optimizer."
    )


@dataclass
class TrackingConfig:
    """Where metrics and samples go, besides `metrics.jsonl`."""

    wandb: bool = doc(False, "Log to Weights & Biases.")
    wandb_mode: str = doc("online", "`offline` writes to the run directory.", ("online", "offline"))
    wandb_project: str = doc("hone", "Project.")
    wandb_entity: str | None = doc(None, "Team or user.")
    wandb_key_env: str = doc("WANDB_API_KEY", "Name of the environment variable that holds the key.")
    tensorboard: bool = doc(False, "Write TensorBoard files to the run directory.")
    rollouts_every: int = doc(1, "Steps between saved samples; 0 is never.")
    rollouts_per_step: int = doc(8, "Trajectories saved each time.")
    plots: bool = doc(True, "Draw `plots/*.png` at evaluations and at the end.")


@dataclass
class StopConfig:
    """When the run ends. The first rule that fires saves and is named."""

    steps: int | None = doc(None, "Number of steps.")
    epochs: float | None = doc(None, "Passes over the training tasks.")
    hours: float | None = doc(None, "Wall-clock hours.")
    tokens: int | None = doc(None, "Trained tokens.")
    metric: str | None = doc(None, "A metric and a bound: `eval/accuracy >= 0.6`.")
    by: str | None = doc(
        None,
        "Time by which the run must have saved and ended, told by its exit code 143: a duration (`3h45m`), a clock "
        "time (`'23:30'`), a date and time (`'2027-01-31T06:00'`), or `slurm` for the end of the job.",
    )


@dataclass
class RayConfig:
    """The cluster."""

    address: str | None = doc(None, "Address of a running cluster; a private one on loopback when not given.")
    num_cpus: int | None = doc(None, "Logical cores of a private cluster; those of the machine when not given.")
    object_store_gb: float = doc(0.5, "Object store of a private cluster.")
    start_timeout_s: float = doc(120.0, "Longest wait for the cluster and for resources.")


@dataclass
class Config:
    """A run."""

    name: str = doc("run", "Name of the run; its directory is `run_dir/name`.")
    run_dir: str = doc("runs", "Folder that holds run directories.")
    method: str = doc(
        "rl",
        "What `hone train` does: RL, or supervised tuning, DPO or a reward model through TRL's trainers.",
        ("rl", "sft", "dpo", "reward_model"),
    )
    seed: int = doc(0, "Everything random follows from it.")
    deterministic: bool = doc(False, "Same run, same numbers: static routing, fixed threads, sorted results. Slower.")
    device: str = doc("auto", "`auto` takes GPUs when there are any.", ("auto", "cpu", "gpu"))
    colocate: bool = doc(True, "Engine and trainer share the devices and take turns.")
    tasks_per_step: int = doc(8, "Tasks drawn in a step.")
    samples_per_task: int = doc(8, "Trajectories of one task: the group.")
    updates_per_step: int = doc(1, "Optimizer steps that a step's batch is split into.")
    epochs_per_step: int = doc(1, "How often a step's batch is repeated.")
    planner: str = doc("fixed", "Who is sampled, how often, how long.")
    planner_options: dict[str, Any] = doc({}, "Keyword arguments of the planner.")
    offline_options: dict[str, Any] = doc(
        {}, "Passed unchanged to TRL's SFTConfig, DPOConfig or RewardConfig: `{beta: 0.05}` for DPO."
    )
    environment: str = doc("single_turn", "Registry name, `package.module:attr` or `path/file.py:attr`.")
    environment_options: dict[str, Any] = doc({}, "Keyword arguments of the environment.")
    model: ModelConfig = doc(ModelConfig, "The policy.")
    data: DataConfig = doc(DataConfig, "Training tasks.")
    prompt: PromptConfig = doc(PromptConfig, "From a row to a prompt.")
    rollout: RolloutConfig = doc(RolloutConfig, "Sampling.")
    trainer: TrainerConfig = doc(TrainerConfig, "Optimisation.")
    algorithm: AlgorithmConfig = doc(AlgorithmConfig, "The objective.")
    reward: RewardConfig = doc(RewardConfig, "What is rewarded.")
    eval: EvalConfig = doc(EvalConfig, "Held-out evaluation.")
    sync: SyncConfig = doc(SyncConfig, "Weights to the engines.")
    checkpoint: CheckpointConfig = doc(CheckpointConfig, "Saving state.")
    tracking: TrackingConfig = doc(TrackingConfig, "Metrics and samples.")
    stop: StopConfig = doc(StopConfig, "When to end.")
    ray: RayConfig = doc(RayConfig, "The cluster.")
