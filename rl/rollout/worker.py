"""One engine with its episodes: what a Ray actor wraps, usable without Ray."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl.config.schema import Config
from rl.data.tokens import load_tokenizer
from rl.rollout import create_engine
from rl.rollout.engine import Engine
from rl.rollout.episodes import EpisodeRunner
from rl.types import Request, Trajectory


class RolloutWorker:
    """Everything else that an engine does is reached through `engine`."""

    def __init__(self, config: Config, *, index: int = 0, trained: bool = True) -> None:
        self._config, self.index = config, index
        self.engine: Engine = create_engine(config, index=index, trained=trained)
        self._runner: EpisodeRunner | None = None

    async def start(self) -> None:
        await self.engine.start()
        self._runner = EpisodeRunner(self.engine, self._config, load_tokenizer(self._config.model))

    async def rollout(self, request: Request) -> list[Trajectory]:
        if self._runner is None:
            raise RuntimeError("the worker has not been started")
        return await self._runner.run(request)

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.close()
        await self.engine.stop()

    async def abort(self) -> None:
        await self.engine.abort()

    async def score(self, rows: Sequence[Sequence[int]], temperature: float) -> list[Any]:
        return await self.engine.score(rows, temperature)

    def status(self) -> dict[str, Any]:
        return self.engine.status()
