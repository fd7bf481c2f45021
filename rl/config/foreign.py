"""Other frameworks' words for our settings, so that an error can translate them."""

from __future__ import annotations

WORDS = {
    # verl
    "train_batch_size": "`tasks_per_step` (tasks, not trajectories)",
    "data.train_batch_size": "`tasks_per_step` (tasks, not trajectories)",
    "data.max_prompt_length": "`prompt.max_tokens`",
    "data.max_response_length": "`rollout.max_response_tokens`",
    "data.train_files": "`data.sources: [{path: ...}]`",
    "data.val_files": "`eval.sources: [{path: ...}]`",
    "rollout.n": "`samples_per_task`",
    "ppo_mini_batch_size": "`updates_per_step` (how many updates a step's batch is split into)",
    "ppo_micro_batch_size": "`trainer.max_tokens_per_microbatch` (tokens, packed)",
    "ppo_micro_batch_size_per_gpu": "`trainer.max_tokens_per_microbatch` (tokens, packed)",
    "ppo_epochs": "`epochs_per_step`",
    "actor_rollout_ref": "split over `model`, `rollout`, `trainer` and `algorithm`",
    "algorithm.adv_estimator": "`algorithm.advantage`",
    "trainer.total_epochs": "`stop.epochs`",
    "trainer.total_training_steps": "`stop.steps`",
    "trainer.test_freq": "`eval.every`",
    "trainer.save_freq": "`checkpoint.every`",
    "trainer.project_name": "`tracking.wandb_project`",
    "trainer.experiment_name": "`name`",
    "trainer.n_gpus_per_node": "`trainer.ranks`",
    "rollout.tensor_model_parallel_size": "`rollout.tensor_parallel`",
    "kl_loss_coef": "`algorithm.kl_coef`",
    "use_kl_loss": "`algorithm.kl_coef` (above 0 turns the term on)",
    # TRL
    "num_generations": "`samples_per_task`",
    "per_device_train_batch_size": "`tasks_per_step` and `trainer.max_tokens_per_microbatch`",
    "gradient_accumulation_steps": "nothing to set: micro-batches are packed by `trainer.max_tokens_per_microbatch`",
    "learning_rate": "`trainer.lr`",
    "trainer.learning_rate": "`trainer.lr`",
    "lr": "`trainer.lr`",
    "max_completion_length": "`rollout.max_response_tokens`",
    "max_prompt_length": "`prompt.max_tokens`",
    "num_iterations": "`epochs_per_step`",
    "max_steps": "`stop.steps`",
    "num_train_epochs": "`stop.epochs`",
    "beta": "`algorithm.kl_coef`",
    "epsilon": "`algorithm.policy_loss_options.clip_low`",
    "epsilon_high": "`algorithm.policy_loss_options.clip_high`",
    "model_name_or_path": "`model.path`",
    "output_dir": "`run_dir` and `name`",
    "save_steps": "`checkpoint.every`",
    "eval_steps": "`eval.every`",
    "report_to": "`tracking.wandb` or `tracking.tensorboard`",
    "bf16": "`trainer.dtype: bfloat16`",
    "reward_funcs": "`reward.functions: {name: {fn: ...}}`",
    # OpenRLHF
    "pretrain": "`model.path`",
    "rollout_batch_size": "`tasks_per_step`",
    "n_samples_per_prompt": "`samples_per_task`",
    "micro_train_batch_size": "`trainer.max_tokens_per_microbatch` (tokens, packed)",
    "actor_learning_rate": "`trainer.lr`",
    "init_kl_coef": "`algorithm.kl_coef`",
    "prompt_max_len": "`prompt.max_tokens`",
    "generate_max_len": "`rollout.max_response_tokens`",
    "vllm_num_engines": "`rollout.workers`",
    "vllm_tensor_parallel_size": "`rollout.tensor_parallel`",
    "zero_stage": "`trainer.zero_stage`",
    "remote_rm_url": "`reward.functions: {name: {fn: ...}}`",
    "advantage_estimator": "`algorithm.advantage`",
    # common
    "batch_size": "`tasks_per_step` x `samples_per_task`",
    "mini_batch_size": "`updates_per_step` (how many updates a step's batch is split into)",
    "max_tokens": "`rollout.max_response_tokens`",
    "temperature": "`rollout.temperature`",
    "group_size": "`samples_per_task`",
}


def translation(path: str) -> str | None:
    """Our word for a dotted key of another framework, if it is known."""
    parts = path.split(".")
    for start in range(len(parts)):
        words = (
            WORDS.get(".".join(parts[start:])) if start < len(parts) - 1 or len(parts) == 1 else WORDS.get(parts[-1])
        )
        if words is not None:
            return words
    return WORDS.get(parts[0])
