"""Reward files of other frameworks, unchanged, and rewards behind HTTP.

TRL's reward functions need no adapter: their contract is ours (`fn: my_trl_rewards.py:reward`).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from rewards.contract import RewardError, text_of
from rewards.web import post
from rl.config.plugins import load_object


def verl(
    completions: Sequence[Any], *, file: str, function: str = "compute_score", **columns: Any
) -> list[float | None]:
    """`compute_score(data_source, solution_str, ground_truth, extra_info)` of verl, once a sample.

    The gold answer is `reward_model.ground_truth` of verl's rows, else the column `ground_truth` or `answer`.

    Args:
        file: the Python file, absolute or relative to where the run was started.
    """
    compute = _from(file, function)
    scores: list[float | None] = []
    for i, completion in enumerate(completions):
        row = _row(columns, i)
        nested = row.get("reward_model")
        gold = nested.get("ground_truth") if isinstance(nested, Mapping) else row.get("ground_truth", row.get("answer"))
        result = compute(
            data_source=row.get("data_source"),
            solution_str=text_of(completion),
            ground_truth=gold,
            extra_info=row.get("extra_info"),
        )
        scores.append(_number(result["score"] if isinstance(result, Mapping) else result))
    return scores


def openrlhf(
    prompts: Sequence[Any], completions: Sequence[Any], *, file: str, function: str = "reward_func", **columns: Any
) -> list[float | None]:
    """`reward_func(queries, prompts, labels)` of OpenRLHF, once for all samples of a call.

    ``queries`` are prompt and answer in one text; ``labels`` is the column `label` or `answer`.
    """
    asked = ["\n".join(str(m.get("content") or "") for m in prompt) for prompt in prompts]
    said = [text_of(c) for c in completions]
    labels = columns.get("label", columns.get("answer", [None] * len(said)))
    result = _from(file, function)([a + b for a, b in zip(asked, said, strict=True)], asked, labels)
    values = result["rewards"] if isinstance(result, Mapping) else result
    return [_number(v) for v in values]


def verifiers(
    prompts: Sequence[Any], completions: Sequence[Any], *, file: str, rubric: str = "rubric", **columns: Any
) -> list[float | None]:
    """A `Rubric` of verifiers (0.1.8 to 0.3), group functions included: its weighted sum for each sample.

    Such a rubric logs what its functions raise and goes on with 0; here that ends the run.

    Args:
        file: the Python file; ``rubric`` names the object in it, or a function that makes an environment
            with a rubric, `load_environment` for example.
    """
    judge = _rubric(file, rubric)
    states: list[dict[str, Any]] = []
    for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        row = _row(columns, i)
        states.append(
            {
                "prompt": list(prompt),
                "completion": list(completion),
                "answer": row.get("answer", ""),
                "task": row.get("task", "default"),
                "info": row.get("info") or {},
                "input": row,
                "trajectory": [],
                "timing": {"generation_ms": 0.0, "scoring_ms": 0.0, "total_ms": 0.0},
            }
        )
    loggers = {id(x): x for x in (logging.getLogger("verifiers"), getattr(judge, "logger", None)) if x is not None}
    faults = _Faults()
    for logger in loggers.values():
        logger.addHandler(faults)
    try:
        wants_turns = "score_sem" in inspect.signature(judge.score_group).parameters
        extra = {"score_sem": contextlib.nullcontext()} if wants_turns else {}
        asyncio.run(judge.score_group(states, **extra))
    finally:
        for logger in loggers.values():
            logger.removeHandler(faults)
    if faults.messages:
        raise RewardError(f"{file}:{rubric}: {faults.messages[0]}")
    return [_number(state["reward"]) for state in states]


def http(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    *,
    url: str,
    headers: Mapping[str, str] | None = None,
    seconds: float = 30.0,
    **columns: Any,
) -> list[float | None]:
    """Scores of a server: POST of `{"prompts", "completions", "columns"}`, answered by `{"scores": [...]}`.

    A server that cannot be reached or answers with 5xx or 429 is a fault of the infrastructure
    (`on_infra_error`); any other answer that is no list of scores ends the run.
    """
    kept = {k: list(v) for k, v in columns.items() if k not in ("trajectories", "completion_ids") and _is_column(v)}
    said = post(url, {"prompts": prompts, "completions": completions, "columns": kept}, headers or {}, seconds)
    if not isinstance(said, Mapping) or not isinstance(said.get("scores"), list):
        raise RewardError(f'{url} answered without {{"scores": [...]}}: {str(said)[:200]}')
    return [None if v is None else _number(v) for v in said["scores"]]


class _Faults(logging.Handler):
    """Keeps what is logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@cache
def _rubric(file: str, name: str) -> Any:
    found = _from(file, name)
    if not hasattr(found, "score_group") and callable(found):
        found = found()
    found = getattr(found, "rubric", found)
    if not hasattr(found, "score_group"):
        raise RewardError(f"{file}:{name} has no score_group: name a verifiers Rubric, or what loads its environment")
    return found


@cache
def _from(file: str, function: str) -> Any:
    return load_object(f"{file}:{function}", {})


def _is_column(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _row(columns: Mapping[str, Any], i: int) -> dict[str, Any]:
    return {name: values[i] for name, values in columns.items() if _is_column(values)}


def _number(value: Any) -> float:
    return float(value.item() if hasattr(value, "item") else value)
