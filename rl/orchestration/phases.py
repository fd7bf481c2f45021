"""Who has the devices: engine and trainer take turns on shared GPUs; elsewhere nothing happens."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable


class Phases:
    """Brackets around the loop's work.

    Args:
        sleep: makes the engines free their GPU memory; ``None`` where devices are not shared.
        wake: gives it back to them. Weights in there are stale until the next publish.
    """

    def __init__(
        self,
        sleep: Callable[[], Awaitable[None]] | None = None,
        wake: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._sleep, self._wake = sleep, wake

    @contextlib.asynccontextmanager
    async def generate(self) -> AsyncIterator[None]:
        """Engines hold the devices."""
        yield

    @contextlib.asynccontextmanager
    async def train(self) -> AsyncIterator[None]:
        """The trainer holds the devices; the engines are awake again when it ends, ready for new weights."""
        if self._sleep is not None:
            await self._sleep()
        try:
            yield
        finally:
            if self._wake is not None:
                await self._wake()
