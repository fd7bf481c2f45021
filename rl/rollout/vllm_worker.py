"""What runs inside vLLM's own worker process: loading a publish into the running model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rl.sync.base import WeightManifest


class SyncExtension:
    """Mixed into vLLM's worker through ``worker_extension_cls``."""

    model_runner: Any
    rank: int
    device: Any

    def hone_load(self, manifest: tuple[Any, ...], first: int) -> int:
        """Loads every tensor of a publish in place; returns how many.

        Args:
            manifest: fields of a `WeightManifest`.
            first: rank of this engine's first worker in a collective publish.
        """
        from rl.sync.collective import receive
        from rl.sync.file import read_tensors

        publish = WeightManifest(*manifest)
        source = (
            read_tensors(publish) if publish.transport == "file" else receive(publish, first + self.rank, self.device)
        )
        count = 0

        def counted() -> Iterator[tuple[str, Any]]:
            nonlocal count
            for pair in source:
                count += 1
                yield pair

        self.model_runner.reload_weights(weights_iterator=counted())
        return count
