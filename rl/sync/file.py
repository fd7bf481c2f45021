"""The ``file`` transport: rank 0 writes safetensors into shared memory, engines map them.

The last committed publish stays for engines that replace dead ones; the one before is removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rl.sync.base import WeightManifest
from rl.types import PolicyVersion

CHUNK_BYTES = 512 * 2**20


class FileSender:
    """`WeightSender` of one rank; only rank 0 writes, the others take part in gathering."""

    def __init__(self, root: Path, *, rank: int) -> None:
        self._root, self._rank = root, rank
        self._open: WeightManifest | None = None
        self._committed: WeightManifest | None = None
        if rank == 0:
            root.mkdir(parents=True, exist_ok=True)
            (root / "owner").write_text(str(os.getpid()))

    def begin(self, version: PolicyVersion, meta: Iterable[tuple[str, tuple[int, ...], str]]) -> WeightManifest:
        rows = list(meta)
        folder = self._root / f"{version.incarnation}-{version.number}"
        if self._rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        names, shapes, dtypes = (tuple(column) for column in zip(*rows, strict=True))
        self._open = WeightManifest(version, "file", str(folder), names, shapes, dtypes)
        return self._open

    def send(self, tensors: Iterator[tuple[str, Any]]) -> None:
        assert self._open is not None, "begin() comes first"
        from safetensors.torch import save_file

        chunk: dict[str, Any] = {}
        size, files = 0, 0
        sent = []
        for name, tensor in tensors:
            sent.append(name)
            if self._rank:
                continue
            # A tied head is the embedding's memory; a file holds each tensor once, so it gets a copy.
            chunk[name] = tensor.detach().cpu().contiguous().clone()
            size += chunk[name].nbytes
            if size >= CHUNK_BYTES:
                save_file(chunk, Path(self._open.location) / f"{files:05d}.safetensors")
                chunk, size, files = {}, 0, files + 1
        if chunk:
            save_file(chunk, Path(self._open.location) / f"{files:05d}.safetensors")
        if tuple(sent) != self._open.names:
            raise RuntimeError("the tensors sent are not those that were announced")

    def commit(self) -> None:
        old, self._committed, self._open = self._committed, self._open, None
        if self._rank == 0 and old is not None and self._committed and old.location != self._committed.location:
            shutil.rmtree(old.location, ignore_errors=True)

    def abort(self) -> None:
        if self._rank == 0 and self._open is not None:
            shutil.rmtree(self._open.location, ignore_errors=True)
        self._open = None

    def close(self) -> None:
        if self._rank == 0:
            shutil.rmtree(self._root, ignore_errors=True)


def read_tensors(manifest: WeightManifest) -> Iterator[tuple[str, Any]]:
    """All tensors of a publish by name."""
    from safetensors import safe_open

    for file in sorted(Path(manifest.location).glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                yield name, opened.get_tensor(name)


def remove_leftovers(parent: Path) -> list[Path]:
    """Removes publish folders whose owner is dead, and returns them."""
    removed = []
    for folder in parent.glob("hone-sync-*"):
        with contextlib.suppress(OSError, ValueError):
            owner = int((folder / "owner").read_text())
            try:
                os.kill(owner, 0)
            except ProcessLookupError:
                shutil.rmtree(folder, ignore_errors=True)
                removed.append(folder)
    return removed
