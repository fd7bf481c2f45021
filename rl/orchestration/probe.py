"""The start-up probe: proof that every tensor of a publish reaches the engines.

A first update is too small to show a stale tensor in bfloat16, so a copy with noise on every tensor
is published, engine and trainer are compared, and the true weights follow.
"""

from __future__ import annotations

import numpy as np

from rl.config.schema import Config
from rl.orchestration.session import Session


class ProbeError(RuntimeError):
    """Engine and trainer disagree about the weights."""


async def probe_weights(session: Session) -> None:
    """Compares log-probs after a noised and a true publish.

    Raises:
        ProbeError: the difference is over ``sync.probe_max`` (float32) or ``sync.probe_mean`` (bfloat16).
    """
    config = session.config
    rows = _rows(session)
    await session.trainer.perturb(config.seed)
    await session.publish()
    await _compare(session, rows, "noised weights")
    await session.trainer.restore()
    await session.publish()
    await _compare(session, rows, "the true weights")


def _exact(config: Config) -> bool:
    return config.rollout.dtype == config.trainer.dtype == "float32"


def _rows(session: Session) -> list[list[int]]:
    """Short prompts of the run itself, as token ids."""
    from rl.data import PromptBuilder
    from rl.data.tokens import load_tokenizer

    builder = PromptBuilder(load_tokenizer(session.config.model), session.config.prompt)
    return [builder.encode(task.messages)[:48] for task in session.tasks.peek(4)]


async def _compare(session: Session, rows: list[list[int]], what: str) -> None:
    sync = session.config.sync
    exact = _exact(session.config)
    expected = await session.trainer.logprobs(rows, 1.0)
    for member, scores in zip(session.pool.members, await session.pool.score(rows, 1.0), strict=True):
        gaps = np.concatenate([np.abs(a[1:] - b[1:]) for a, b in zip(expected, scores, strict=True)])
        # A noised model gives log-probs far below those of the true one, and rounding grows with them.
        size = float(np.mean(np.concatenate([np.abs(a[1:]) for a in expected])))
        found, limit = (gaps.max(), sync.probe_max) if exact else (gaps.mean(), sync.probe_mean * max(1.0, size / 5))
        if not np.isfinite(found) or found > limit:
            raise ProbeError(
                f"{member.who} does not hold the trainer's weights after a publish of {what}: log-probs differ by "
                f"{found:.3g} (limit {limit:.3g}). A tensor did not arrive; is this model family supported "
                "(docs/models.md)? sync.probe=false turns this check off"
            )
