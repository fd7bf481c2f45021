"""One lifecycle for weights, over several transports.

The trainer is the sender, each engine a receiver. For every publish the controller calls, in this order:

1. ``sender.begin(version)`` on all trainer ranks and ``receiver.begin_update(manifest)`` on all engines;
2. ``sender.send()`` and, at the same time for transports that meet in the middle (NCCL) or after it
   (files), ``receiver.receive_weights()``;
3. ``commit`` on all of them, or ``abort`` on all of them.

Loading is in place: an engine between ``begin_update`` and ``commit_update`` is dirty and refuses
to generate until a whole set of weights has been committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from rl.types import PolicyVersion


@dataclass(frozen=True, slots=True)
class WeightManifest:
    """What a publish consists of; small, travels through the controller."""

    version: PolicyVersion
    transport: str
    location: str
    """Where receivers find it: a folder for ``file``, an address for ``nccl``."""
    names: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


class WeightReceiver(Protocol):
    """The engine's half."""

    async def begin_update(self, manifest: WeightManifest) -> None: ...

    async def receive_weights(self, manifest: WeightManifest) -> None: ...

    async def commit_update(self, manifest: WeightManifest) -> None:
        """Make the weights current: drop caches that the old ones filled, set the version."""
        ...

    async def abort_update(self, manifest: WeightManifest) -> None: ...


class WeightSender(Protocol):
    """The trainer rank's half. Every rank calls every method: gathering shards is collective."""

    def begin(self, version: PolicyVersion, meta: Iterable[tuple[str, tuple[int, ...], str]]) -> WeightManifest:
        """Open a publish of tensors (name, shape, dtype)."""
        ...

    def send(self, tensors: Iterator[tuple[str, Any]]) -> None:
        """Consume full tensors by name, in the manifest's order."""
        ...

    def commit(self) -> None:
        """The publish is complete; the snapshot stays for replacement engines."""
        ...

    def abort(self) -> None: ...

    def close(self) -> None:
        """The run ends: nothing of it stays behind."""
        ...
