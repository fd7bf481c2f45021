"""The stable names of all metrics, in one table. `docs/metrics.md` is generated from it.

A name with a part in capitals, such as ``reward/NAME/mean``, is a pattern: the part stands for one or
more words of the run's own (a reward's name, a source's name).
"""

from __future__ import annotations

import re
from functools import cache

METRICS: dict[str, str] = {
    "reward/mean": "Mean weighted reward of the step's scored trajectories.",
    "reward/std": "Standard deviation of the same (ddof 0).",
    "reward/min": "Smallest weighted reward.",
    "reward/max": "Largest weighted reward.",
    "reward/outcome": "Mean outcome: correctness apart from shaping.",
    "reward/NAME/mean": "Mean of one named reward before weighting, over the trajectories that it scored.",
    "reward/NAME/none_share": "Share of trajectories that the named reward did not score.",
    "reward/NAME/weight": "Weight of a named reward at this step, where it has a schedule.",
    "reward/NAME/KIND": "How often a named reward failed or what it logged itself, by kind.",
    "response/tokens_mean": "Mean number of sampled tokens of a trajectory.",
    "response/tokens_max": "Largest number of sampled tokens of a trajectory.",
    "response/truncated_share": "Share of trajectories that overran a limit of their own (length, turns, context).",
    "response/failed_share": "Share of trajectories ended by a timeout, an environment's error or an abort.",
    "groups/zero_variance_share": "Share of groups whose rewards are all equal: they teach nothing under GRPO.",
    "advantage/mean": "Mean advantage over trajectories.",
    "advantage/std": "Standard deviation of the advantages.",
    "advantage/abs_max": "Largest absolute advantage.",
    "policy/entropy": "Mean entropy of the policy over trained tokens, in nats at the sampling temperature.",
    "policy/kl": "Mean estimated KL from the old to the current policy, in nats a token.",
    "policy/ref_kl": "Mean estimated KL to the reference model, in nats a token; only with a KL term.",
    "policy/ratio_mean": "Mean probability ratio of the current to the old policy.",
    "policy/ratio_max": "Largest probability ratio.",
    "policy/ratio_min": "Smallest probability ratio.",
    "policy/ratio_clamped_share": "Share of tokens whose log-ratio was clamped before it was exponentiated.",
    "policy/clip_fraction_low": "Share of tokens clipped at the lower bound.",
    "policy/clip_fraction_high": "Share of tokens clipped at the upper bound.",
    "policy/masked_share": "Share of tokens that the entropy mask leaves out of the policy loss.",
    "policy/entropy_coef": "Weight of the entropy bonus in this step.",
    "correction/weight_mean": "Mean weight of the correction between rollout and trainer log-probs.",
    "correction/changed_share": "Share of tokens whose weight the correction truncated or masked.",
    "guide/log_q_mean": "Mean log q of SAGE's guide over trained tokens.",
    "guide/log_q_min": "Smallest log q.",
    "guide/log_q_max": "Largest log q.",
    "guide/above_one_share": "Share of tokens with q above 1.",
    "value/loss": "Mean value loss.",
    "value/mean": "Mean predicted value.",
    "value/return_mean": "Mean return that the values are fitted to.",
    "value/clip_fraction": "Share of tokens where the clipped value loss is the larger one.",
    "policy/version": "Number of the newest published policy version.",
    "policy/staleness_mean": "Mean age of the sampled tokens, in versions.",
    "policy/staleness_max": "Largest age of a sampled token, in versions.",
    "train/loss": "Loss over the global batch, the mean over updates.",
    "train/grad_norm": "Global gradient norm before clipping, the mean over updates.",
    "eval/loss": "Mean loss on held-out examples (`method: sft`, `dpo` and `reward_model`).",
    "data/epoch": "Passes over the examples (the same methods).",
    "offline/NAME": "What TRL's trainer logs beside these, by its own name: `rewards/accuracies`, say.",
    "train/lr": "Learning rate of the step's last update.",
    "train/updates": "Optimizer steps taken in this step.",
    "train/skipped_updates": "Optimizer steps skipped because a gradient was not finite, or nothing was trained.",
    "train/skipped_share": "Share of trajectories left out of the forward pass because they cannot give a gradient.",
    "train/trajectories": "Trajectories that entered the batch.",
    "train/dropped/REASON": "Trajectories that did not enter the batch, by reason.",
    "planner/dropped/REASON": "Bundles that the planner dropped, by reason.",
    "gap/mean": "Mean absolute difference between rollout and trainer log-probs, over trained tokens, in nats.",
    "gap/max": "Largest such difference.",
    "gap/share_above": "Share of tokens whose difference is above the threshold.",
    "tokens/generated": "Tokens sampled in the step.",
    "tokens/trained": "Tokens that a loss was computed on.",
    "tokens/processed": "Tokens that went through the trainer, prompts included.",
    "time/generate": "Seconds of sampling.",
    "time/score": "Seconds of waiting for rewards after sampling had ended.",
    "time/train": "Seconds of training, packing included.",
    "time/prepass": "Seconds of the forward pass for old or reference log-probs; part of `time/train`.",
    "time/optimise": "Seconds of forward, backward and updates; part of `time/train`.",
    "time/sync": "Seconds of sending the weights to the engines.",
    "time/step": "Seconds of the whole step.",
    "throughput/tokens_per_second": "Sampled tokens over the seconds of the whole step.",
    "rollout/restarts": "Rollout workers restarted since the run began.",
    "checkpoint/copy_failures": "Checkpoints that could not be copied to `checkpoint.copy_to` when they were made.",
    "trainer/restarts": "Times that all trainer ranks were started again, since the process began.",
    "eval/accuracy": "Held-out outcome, or reward where no outcome is named, over all sources.",
    "eval/SOURCE/accuracy": "The same for one source.",
    "eval/SOURCE/tokens_mean": "Mean number of sampled tokens of a held-out trajectory.",
    "eval/SOURCE/truncated_share": "Share of held-out trajectories that overran a limit.",
    "eval/SOURCE/episode/NAME": "Mean of a metric that the environment or engine put on held-out trajectories.",
    "eval/pass_at/K": "Share of held-out tasks that one of K samples solves, by the unbiased estimator.",
    "eval/SOURCE/pass_at/K": "The same for one source.",
    "data/SOURCE/reward": "Mean weighted reward of one source.",
    "data/SOURCE/tasks": "Tasks of one source in the step.",
    "data/SOURCE/epoch": "Passes over one source so far.",
    "data/NAME": "Counts of the training data, such as its epoch and dropped prompts.",
    "episode/NAME": "Mean of a metric that the environment or engine put on trajectories.",
    "tracking/nonfinite": "Values of this line that were NaN or infinite and are written as null.",
    "tracking/failures": "Calls to wandb or TensorBoard that have failed since the process began.",
}
"""Name or pattern -> meaning, in the order of the documentation."""


def describe(name: str) -> str | None:
    """The meaning of a metric; ``None`` for a name that is not in the table."""
    if name in METRICS:
        return METRICS[name]
    for regex, text in _patterns():
        if regex.fullmatch(name):
            return text
    return None


def table() -> str:
    """The page `docs/metrics.md`."""
    rows = [f"| `{name}` | {text} |" for name, text in METRICS.items()]
    return "\n".join(
        [
            "# Metrics",
            "",
            "Each step appends one JSON object to `runs/NAME/metrics.jsonl`: `step`, `time` (Unix seconds) and the",
            "metrics below. A metric that does not apply is absent; a value that is not finite is `null`. Words in",
            "capitals stand for names of your run. wandb and TensorBoard get the same names.",
            "",
            "Line 0 holds the evaluation before the first step. After a resume, lines past the checkpoint move to",
            "`metrics.abandoned.jsonl`.",
            "",
            "| name | meaning |",
            "|---|---|",
            *rows,
            "",
            "This page is generated: `python -m rl.tracking.names > docs/metrics.md`.",
            "",
        ]
    )


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    found = []
    for name, text in METRICS.items():
        parts = [r".+" if part.isupper() else re.escape(part) for part in name.split("/")]
        if r".+" in parts:
            found.append((re.compile("/".join(parts)), text))
    return tuple(found)


if __name__ == "__main__":
    print(table(), end="")
