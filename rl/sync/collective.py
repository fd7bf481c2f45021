"""The ``nccl`` and ``gloo`` transports: rank 0 broadcasts each tensor to every engine worker.

Each publish meets in a process group of its own at a fresh port, so a replaced engine needs nothing
but the next manifest. NCCL is for GPUs; gloo runs the same code between CPU processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rl.meeting import TIMEOUT, join_store, open_store
from rl.sync.base import WeightManifest
from rl.types import PolicyVersion


class CollectiveSender:
    """`WeightSender` of one rank; only rank 0 broadcasts, the others take part in gathering.

    Args:
        receivers: engine workers, over all engines: each holds a rank of its own after the sender's 0.
        host: address of this process that engines can reach.
    """

    def __init__(self, *, backend: str, rank: int, receivers: int, host: str) -> None:
        self._backend, self._rank, self._receivers, self._host = backend, rank, receivers, host
        self._open: WeightManifest | None = None
        self._store: dist.TCPStore | None = None

    def begin(self, version: PolicyVersion, meta: Iterable[tuple[str, tuple[int, ...], str]]) -> WeightManifest:
        names, shapes, dtypes = (tuple(column) for column in zip(*meta, strict=True))
        if self._rank == 0:
            self._store = open_store(self._host, self._receivers + 1)
        address = f"{self._host}:{self._store.port}" if self._store is not None else ""
        options = {"world": self._receivers + 1}
        self._open = WeightManifest(version, self._backend, address, names, shapes, dtypes, options)
        return self._open

    def send(self, tensors: Iterator[tuple[str, Any]]) -> None:
        assert self._open is not None, "begin() comes first"
        group = None if self._store is None else join(self._open, 0, self._store)
        sent = []
        for name, tensor in tensors:
            sent.append(name)
            if group is not None:
                broadcast(group, tensor.detach().contiguous())
        if tuple(sent) != self._open.names:
            raise RuntimeError("the tensors sent are not those that were announced")

    def commit(self) -> None:
        self._open = self._store = None

    def abort(self) -> None:
        self._open = self._store = None

    def close(self) -> None:
        self._open = self._store = None


def receive(manifest: WeightManifest, rank: int, device: torch.device) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a publish, in its order, as it arrives.

    Args:
        rank: this receiver's, from 1.
    """
    host, port = manifest.location.rsplit(":", 1)
    group = join(manifest, rank, join_store(host, int(port), manifest.options["world"]))
    for name, shape, dtype in zip(manifest.names, manifest.shapes, manifest.dtypes, strict=True):
        buffer = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
        broadcast(group, buffer)
        yield name, buffer


def join(manifest: WeightManifest, rank: int, store: dist.TCPStore) -> Any:
    """The process group of one publish, apart from any that DeepSpeed or vLLM have."""
    world = manifest.options["world"]
    if manifest.transport == "nccl":
        return dist.ProcessGroupNCCL(store, rank, world, dist.ProcessGroupNCCL.Options())
    return dist.ProcessGroupGloo(store, rank, world, TIMEOUT)


def broadcast(group: Any, tensor: Tensor) -> None:
    """From rank 0 to all others, in place."""
    options = dist.BroadcastOptions()
    options.rootRank = 0
    group.broadcast([tensor], options).wait()
