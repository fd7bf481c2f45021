"""Where processes meet to form a group: a key-value store on a port that its owner has held from the first."""

from __future__ import annotations

import datetime
import socket

import torch.distributed as dist

TIMEOUT = datetime.timedelta(minutes=10)


def open_store(host: str, world: int) -> dist.TCPStore:
    """A store for ``world`` processes on a free port of ``host``, and on no other interface.

    The port is bound here and stays bound: one that is found free, released and taken again later may have
    been taken by another process in between.
    """
    listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    port = listener.getsockname()[1]
    return dist.TCPStore(host, port, world, True, TIMEOUT, wait_for_workers=False, master_listen_fd=listener.detach())


def join_store(host: str, port: int, world: int) -> dist.TCPStore:
    """The store that another process has opened there."""
    return dist.TCPStore(host, port, world, False, TIMEOUT)
