"""How new weights reach the engines: one lifecycle (`rl.sync.base`), several transports."""

from __future__ import annotations

import tempfile
from pathlib import Path

from rl.config.schema import Config
from rl.sync.base import WeightSender
from rl.sync.file import FileSender, remove_leftovers

SHARED_MEMORY = Path("/dev/shm")


def create_sender(
    config: Config, *, run_id: str, rank: int, host: str = "127.0.0.1", gpus: bool = False
) -> WeightSender:
    """The sending half of ``sync.transport`` for one trainer rank.

    Args:
        host: address of this rank's machine that engines can reach.
        gpus: whether trainer and engines are on GPUs.
    """
    transport = config.sync.transport
    if transport == "auto":
        transport = "nccl" if gpus and not config.colocate else "file"
    if transport != "file":
        from rl.sync.collective import CollectiveSender

        receivers = config.rollout.workers * config.rollout.tensor_parallel
        return CollectiveSender(backend=transport, rank=rank, receivers=receivers, host=host)
    default = SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
    parent = Path(config.sync.dir) if config.sync.dir else default
    if rank == 0:
        remove_leftovers(parent)
    return FileSender(parent / f"hone-sync-{run_id}", rank=rank)
