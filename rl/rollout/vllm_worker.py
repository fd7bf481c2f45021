"""What runs inside vLLM's own worker process: loading a publish into the running model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any


class SyncExtension:
    """Mixed into vLLM's worker through ``worker_extension_cls``."""

    model_runner: Any

    def hone_load(self, location: str) -> int:
        """Loads every tensor of a ``file`` publish in place; returns how many."""
        from safetensors import safe_open

        count = 0

        def tensors() -> Iterator[tuple[str, Any]]:
            nonlocal count
            for file in sorted(Path(location).glob("*.safetensors")):
                with safe_open(file, framework="pt") as opened:
                    for name in opened.keys():  # noqa: SIM118
                        count += 1
                        yield name, opened.get_tensor(name)

        self.model_runner.reload_weights(weights_iterator=tensors())
        return count
