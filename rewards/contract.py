"""The reward contract: a plain function whose parameters are filled by name.

``prompts, completions, completion_ids, trajectories`` and every dataset column, each a list with one
entry a trajectory; options of the recipe as keywords. Returns ``list[float | None]``; ``None`` means
not scored. Functions of TRL's contract work unchanged.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rl.types import Task, Trajectory


class RewardError(RuntimeError):
    """A reward function raised or answered with something else than scores; ends the run."""


class RewardUnavailable(RuntimeError):
    """What a reward needs cannot be reached: raise it for faults of the infrastructure (`on_infra_error`)."""


def text_of(completion: Any) -> str:
    """The text of a completion: a string as it is, messages as the assistant's turns."""
    if isinstance(completion, str):
        return completion
    if isinstance(completion, Sequence):
        return "\n".join(str(m.get("content") or "") for m in completion if m.get("role") == "assistant")
    return "" if completion is None else str(completion)


def arguments_for(
    fn: Callable[..., Any], tasks: Sequence[Task], trajectories: Sequence[Trajectory], options: Mapping[str, Any]
) -> dict[str, Any]:
    """What to call ``fn`` with.

    Raises:
        RewardError: it wants a parameter that is neither ours, nor a column, nor an option.
    """
    columns = {name: [task.columns.get(name) for task in tasks] for name in {k for task in tasks for k in task.columns}}
    available: dict[str, Any] = {
        **columns,
        "prompts": [list(task.messages) for task in tasks],
        "completions": [list(t.completion) for t in trajectories],
        "completion_ids": [[int(i) for s in t.segments for i in s.token_ids[s.loss_mask]] for t in trajectories],
        "trajectories": list(trajectories),
        **options,
    }
    parameters = inspect.signature(fn).parameters
    missing = [
        name
        for name, p in parameters.items()
        if name not in available
        and p.default is inspect.Parameter.empty
        and p.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    ]
    if missing:
        raise RewardError(
            f"reward {name_of(fn)} wants {missing}; there are prompts, completions, completion_ids, trajectories, "
            f"its options {sorted(options)} and the data's columns {sorted(columns)}"
        )
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return available
    return {name: available[name] for name in parameters if name in available}


def checked(fn: Callable[..., Any], scores: Any, count: int) -> list[float | None]:
    """The scores, after checking their number and that they are finite."""
    if not isinstance(scores, (list, tuple)) or len(scores) != count:
        found = len(scores) if isinstance(scores, (list, tuple)) else type(scores).__name__
        raise RewardError(f"reward {name_of(fn)} returned {found} scores for {count} trajectories")
    out: list[float | None] = []
    for i, score in enumerate(scores):
        if score is not None and (isinstance(score, str) or not math.isfinite(float(score))):
            raise RewardError(f"reward {name_of(fn)} returned {score!r} for trajectory {i}; scores are finite numbers")
        out.append(None if score is None else float(score))
    return out


def name_of(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__name__", type(fn).__name__)
