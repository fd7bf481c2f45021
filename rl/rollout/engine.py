"""The engine protocol: what generates tokens and holds a copy of the policy's weights.

An engine lives in one process (a Ray actor in a run) and is driven from one asyncio loop. It
knows nothing of tasks, text or rewards: token ids in, token ids out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from rl.sync.base import WeightReceiver
from rl.types import PolicyVersion, SamplingParams, VersionSpan


@dataclass(slots=True)
class Generation:
    """What one call sampled."""

    token_ids: NDArray[np.int32]
    """``[T]``, the sampled stop token included."""
    logprobs: NDArray[np.float32]
    """``[T]`` in nats, of the distribution sampled from."""
    finish: Literal["stop", "length", "aborted"]
    version_spans: tuple[VersionSpan, ...]
    """Relative to ``token_ids``; together they cover it."""

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.logprobs):
            raise ValueError(f"engine returned {len(self.token_ids)} tokens with {len(self.logprobs)} log-probs")


class Engine(WeightReceiver, Protocol):
    """Generates with the current weights; see `rl.sync.base` for how they change."""

    async def start(self) -> None:
        """Load and become ready. Raises with a message that says what to do."""
        ...

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, seed: int, request_id: str
    ) -> Generation:
        """Sample one continuation. Raises ``DirtyEngineError`` while weights are incomplete."""
        ...

    async def score(self, rows: Sequence[Sequence[int]], temperature: float) -> list[NDArray[np.float32]]:
        """Log-prob of each token given those before it, ``[T]`` a row; entry 0 is 0."""
        ...

    async def pause(self) -> None:
        """Hold all requests: none makes progress until ``resume``."""
        ...

    async def resume(self) -> None: ...

    async def abort(self, request_ids: Sequence[str] | None = None) -> None:
        """End these requests (all when ``None``) with finish ``aborted``."""
        ...

    async def sleep(self) -> None:
        """Free the devices' memory; weights are incomplete until the next publish."""
        ...

    async def wake(self) -> None: ...

    def version(self) -> PolicyVersion:
        """Version of the last commit."""
        ...

    def status(self) -> dict[str, Any]:
        """Requests in flight, tokens generated, version: plain values, at once."""
        ...

    async def stop(self) -> None:
        """Free everything; idempotent."""
        ...


class DirtyEngineError(RuntimeError):
    """The engine holds a mixture of weights and must be sent all of them again."""
