"""Checkpoint files written while training goes on: a copy is made at once, a thread writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor


class BackgroundWriter:
    """Writes files, one after another."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: list[Future[object]] = []

    def save(self, state: Any, path: str) -> None:
        """Returns as soon as ``state`` has been copied; `wait` says whether it was written."""
        self.call(torch.save, snapshot(state), path)

    def call(self, write: Callable[..., object], *arguments: Any) -> None:
        """Has the thread call ``write``; what it is given must not change any more."""
        self._pending.append(self._thread.submit(write, *arguments))

    def wait(self) -> None:
        """Until all is written.

        Raises:
            OSError, RuntimeError: the first write that failed.
        """
        pending, self._pending = self._pending, []
        for future in pending:
            future.result()

    def close(self) -> None:
        """Lets the write in progress end and forgets the others. Idempotent."""
        self._thread.shutdown(wait=True, cancel_futures=True)


def snapshot(state: Any) -> Any:
    """A copy in main memory that later updates do not reach; tensors that share memory share it there too."""
    copies: dict[tuple[Any, ...], Tensor] = {}

    def copy(value: Any) -> Any:
        if isinstance(value, Tensor):
            key = (value.data_ptr(), value.shape, value.stride(), value.dtype, str(value.device))
            if key not in copies or not value.numel():
                copies[key] = value.detach().to("cpu", copy=True)
            return copies[key]
        if isinstance(value, Mapping):
            made = {name: copy(inner) for name, inner in value.items()}
            return made if type(value) is dict else _like(value, made)
        if isinstance(value, list):
            return [copy(inner) for inner in value]
        if type(value) is tuple:
            return tuple(copy(inner) for inner in value)
        return value

    return copy(state)


def _like(mapping: Mapping[Any, Any], made: dict[Any, Any]) -> Any:
    """``made`` in the class of ``mapping``, where that can be built from a dictionary."""
    try:
        return type(mapping)(made)  # type: ignore[call-arg]
    except TypeError:
        return made
