"""A reward model: a sequence classifier with one output, in a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rewards.contract import RewardError
from rl.types import Task

if TYPE_CHECKING:
    from rewards.pool import ScoringPool


class RewardModel:
    """The model's number for each whole conversation.

    One process holds the model, however many scoring processes the run has.
    """

    def __init__(self) -> None:
        self._pool: ScoringPool | None = None

    async def __call__(
        self,
        trajectories: Sequence[Any],
        *,
        model: str,
        device: str = "auto",
        batch: int = 8,
        max_tokens: int = 4096,
        seconds: float = 600.0,
    ) -> list[float | None]:
        """One number a trajectory, unbounded.

        Args:
            model: a folder, a hub id or `runs/NAME@latest` of `method: reward_model`.
            device: `cpu`, `cuda:1`, or `auto`: the first GPU that the controller sees, if any.
            batch: conversations in one forward pass.
            max_tokens: of a longer conversation the last ones count.
            seconds: limit for one call, the loading of the model in the first one included.

        Raises:
            RewardError: the model cannot be loaded or has another number of outputs.
        """
        from rewards.pool import DeadlinePassed, ScoringPool, WorkerLost

        if self._pool is None:
            self._pool = ScoringPool(1)
        options = {"model": model, "device": device, "batch": batch, "max_tokens": max_tokens}
        work = (f"{__name__}:score_conversations", Path.cwd(), options, Task("", ()), list(trajectories), seconds)
        try:
            return await asyncio.to_thread(self._pool.score, *work)
        except DeadlinePassed as error:
            raise TimeoutError(f"the reward model took more than {seconds:g} s") from error
        except WorkerLost as error:
            raise RewardError("the reward model's process died; was there memory enough?") from error

    def close(self) -> None:
        """Ends the process; idempotent."""
        if self._pool is not None:
            self._pool.close()


def score_conversations(
    trajectories: Sequence[Any], *, model: str, device: str, batch: int, max_tokens: int
) -> list[float | None]:
    """What the process does."""
    import torch

    tokenizer, network, place = _load(model, device)
    rows = [_tokens(tokenizer, t.messages)[-max_tokens:] for t in trajectories]
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    scores: list[float | None] = [None] * len(rows)
    for start in range(0, len(order), batch):
        members = order[start : start + batch]
        longest = max(len(rows[i]) for i in members)
        ids = torch.full((len(members), longest), network.config.pad_token_id)
        mask = torch.zeros_like(ids)
        for k, i in enumerate(members):
            ids[k, : len(rows[i])] = torch.tensor(rows[i])
            mask[k, : len(rows[i])] = 1
        with torch.inference_mode():
            logits = network(input_ids=ids.to(place), attention_mask=mask.to(place)).logits[:, 0].float().cpu()
        for i, value in zip(members, logits.tolist(), strict=True):
            scores[i] = value
    return scores


def _tokens(tokenizer: Any, messages: Sequence[Any]) -> list[int]:
    if tokenizer.chat_template:
        return list(tokenizer.apply_chat_template([dict(m) for m in messages], return_dict=False))
    return list(tokenizer("\n\n".join(str(m.get("content") or "") for m in messages))["input_ids"])


@cache
def _load(model: str, device: str) -> tuple[Any, Any, Any]:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from rl.pretrained import resolve

    folder = resolve(model)
    place = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    kind = torch.float32 if place.type == "cpu" else torch.bfloat16
    network = AutoModelForSequenceClassification.from_pretrained(folder, dtype=kind).to(place).eval()
    if network.config.num_labels != 1:
        raise RewardError(f"{model} has {network.config.num_labels} outputs; a reward model has one")
    if network.config.pad_token_id is None:
        network.config.pad_token_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    return tokenizer, network, place
