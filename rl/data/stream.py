"""The training tasks as a stream: mixed by weight, shuffled by epoch, resumable at any position.

The order is a function of (seed, position) alone: it does not depend on ranks, workers or restarts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl.config.errors import ConfigError
from rl.types import Task


@dataclass(frozen=True, slots=True)
class Source:
    """Tasks of one source and their share in the mixture."""

    name: str
    tasks: Sequence[Task]
    weight: float = 1.0


class TaskStream:
    """An endless stream over weighted sources.

    Sources take turns so that after any number of tasks each is within one task of its share. Within
    a source, every epoch is a permutation of its own.

    Args:
        sources: at least one, none empty.
        seed: of the order.
        shuffle: ``False`` keeps the order of the rows.
        dropped: counts of rows that were left out, by reason, for ``counts``.
    """

    def __init__(
        self, sources: Sequence[Source], *, seed: int, shuffle: bool = True, dropped: Mapping[str, int] | None = None
    ) -> None:
        if not sources:
            raise ConfigError("data.sources is empty")
        total = sum(source.weight for source in sources)
        self._sources = list(sources)
        self._shares = [source.weight / total for source in sources]
        self._seed, self._shuffle = seed, shuffle
        self._taken = [0] * len(sources)
        self._orders: dict[tuple[int, int], np.ndarray] = {}
        self.counts = dict(dropped or {})

    @property
    def position(self) -> int:
        """Tasks taken so far."""
        return sum(self._taken)

    @property
    def tasks_per_epoch(self) -> int:
        return sum(len(source.tasks) for source in self._sources)

    @property
    def epoch(self) -> float:
        """Passes over the data, counted in tasks."""
        return self.position / self.tasks_per_epoch

    def take(self, n: int) -> list[tuple[Task, int]]:
        """The next ``n`` tasks, each with its draw number: how often it had been drawn before."""
        return [self._next() for _ in range(n)]

    def peek(self, n: int) -> list[Task]:
        """The tasks that come next; the position stays."""
        before = list(self._taken)
        tasks = [task for task, _ in self.take(n)]
        self._taken = before
        return tasks

    def tasks(self) -> list[Task]:
        """Every task once, source by source."""
        return [task for source in self._sources for task in source.tasks]

    def metrics(self) -> dict[str, float]:
        out = {"epoch": self.epoch, "position": float(self.position)}
        if len(self._sources) > 1:
            for source, taken in zip(self._sources, self._taken, strict=True):
                out[f"{source.name}/epoch"] = taken / len(source.tasks)
        return out

    def state_dict(self) -> dict[str, Any]:
        names = [source.name for source in self._sources]
        return {"taken": dict(zip(names, self._taken, strict=True)), "sizes": self._sizes()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues at a saved position.

        Raises:
            ConfigError: the sources are not those of the saved state.
        """
        if dict(state["sizes"]) != self._sizes():
            raise ConfigError(
                f"the training data changed since the checkpoint: it had {dict(state['sizes'])} tasks by source, "
                f"now {self._sizes()}. Restore the files, or start a new run"
            )
        self._taken = [int(state["taken"][source.name]) for source in self._sources]

    def _sizes(self) -> dict[str, int]:
        return {source.name: len(source.tasks) for source in self._sources}

    def _next(self) -> tuple[Task, int]:
        drawn = self.position + 1
        lag = [share * drawn - taken for share, taken in zip(self._shares, self._taken, strict=True)]
        index = lag.index(max(lag))
        source = self._sources[index]
        epoch, offset = divmod(self._taken[index], len(source.tasks))
        self._taken[index] += 1
        return source.tasks[self._order(index, epoch)[offset]], epoch

    def _order(self, index: int, epoch: int) -> np.ndarray:
        source = self._sources[index]
        if not self._shuffle:
            return np.arange(len(source.tasks))
        if (index, epoch) not in self._orders:
            self._orders = {k: v for k, v in self._orders.items() if k[0] != index}
            text = f"{self._seed}\x1f{source.name}\x1f{epoch}"
            seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
            self._orders[index, epoch] = np.random.default_rng(seed).permutation(len(source.tasks))
        return self._orders[index, epoch]
