"""How new weights reach the engines: one lifecycle (`rl.sync.base`), several transports."""

from __future__ import annotations

import tempfile
from pathlib import Path

from rl.config.errors import ConfigError
from rl.config.schema import Config
from rl.sync.file import FileSender, remove_leftovers

SHARED_MEMORY = Path("/dev/shm")


def create_sender(config: Config, *, run_id: str, rank: int) -> FileSender:
    """The sending half of ``sync.transport`` for one trainer rank."""
    if config.sync.transport not in ("auto", "file"):
        raise ConfigError(f"sync.transport={config.sync.transport} is not built yet; use auto or file")
    default = SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
    parent = Path(config.sync.dir) if config.sync.dir else default
    if rank == 0:
        remove_leftovers(parent)
    return FileSender(parent / f"hone-sync-{run_id}", rank=rank)
