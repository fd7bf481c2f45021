"""How parts are found, given their options, and tried before a run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from rl.config.errors import ConfigError, nearest
from rl.config.plugins import load_object
from rl.objectives.base import Signal, TokenBatch
from rl.types import SOLUTION, Finish, Trajectory

Features = Callable[[list[Trajectory]], list[dict[str, float]]]
"""From a group's trained trajectories to numbers for the rank side, one table for each."""
F = TypeVar("F", bound=Callable[..., Any])


def needs(*signals: Signal, features: Features | None = None) -> Callable[[F], F]:
    """Says which signals a part needs, and how the controller makes what it reads in ``batch.features``."""

    def mark(fn: F) -> F:
        fn.signals, fn.features = frozenset(signals), features  # type: ignore[attr-defined]
        return fn

    return mark


def part(key: str, spec: str, options: Mapping[str, Any], registry: Mapping[str, Any]) -> Any:
    """The part that ``spec`` names, its options bound.

    Args:
        key: of the setting, ``policy_loss`` for ``algorithm.policy_loss`` and its ``_options``.

    Raises:
        ConfigError: the part is unknown or does not take an option.
    """
    try:
        fn = load_object(spec, registry)
    except ConfigError as error:
        raise ConfigError(f"algorithm.{key}: {error}") from error
    parameters = inspect.signature(fn).parameters
    names = [name for name, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY]
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    for name in options:
        if name not in names and not open_ended:
            takes = f"it takes {', '.join(names)}" if names else "it takes no options"
            raise ConfigError(
                f"algorithm.{key}_options.{name}: {spec} has no such option{nearest(name, names)} {takes}"
            )
    return functools.update_wrapper(functools.partial(fn, **options), fn)


def attempt(key: str, spec: str, call: Callable[[], Any]) -> Any:
    """Tries a part on made-up data, so that a bad option or a fault in user code ends before the run.

    Raises:
        ConfigError: with what the part raised.
    """
    try:
        return call()
    except Exception as error:  # whatever a user's function raises is their message
        raise ConfigError(f"algorithm.{key}: {spec} fails on a small batch: {type(error).__name__}: {error}") from error


def signals_of(fn: Any) -> frozenset[Signal]:
    return getattr(fn, "signals", frozenset())


def sample_batch() -> TokenBatch:
    """Five tokens of two sequences with every signal, to try parts on."""
    logprobs = torch.tensor([0.0, -1.0, -2.0, 0.0, -0.5], requires_grad=True)
    numbers = torch.full((5,), -1.0)
    return TokenBatch(
        logprobs=logprobs,
        mask=torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0]),
        advantages=torch.tensor([0.0, 1.0, 1.0, 0.0, -1.0]),
        rollout_logprobs=numbers,
        cu_seqlens=torch.tensor([0, 3, 5], dtype=torch.int32),
        sample_ids=torch.tensor([1, 2]),
        kind_ids=torch.tensor([0, 0]),
        temperature=torch.ones(2),
        step=1,
        run_seed=0,
        old_logprobs=numbers,
        ref_logprobs=numbers,
        entropy=torch.full((5,), 2.0),
        values=torch.zeros(5),
        teacher_logprobs=numbers,
        group_ids=torch.tensor([0, 0]),
        groups=1,
    )


def sample_trajectories() -> list[Trajectory]:
    """Two answers of one group, to try `Features` on."""
    return [
        Trajectory("r", "task#0", SOLUTION, i, i, [], ({"role": "assistant", "content": str(i)},), Finish.STOP)
        for i in range(2)
    ]
