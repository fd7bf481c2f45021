"""One process at a time in a run directory.

The lock is a file that names its owner. A lock whose owner is dead counts as free, also when its
process id has been given to another process since.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock

from rl.config.errors import ConfigError
from rl.tracking.jsonable import write_atomic


class RunLock:
    """The lock of one run directory.

    Raises:
        ConfigError: on construction, when a live process holds it; names the process.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / ".lock"
        self._owner = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started": psutil.Process().create_time(),
        }
        # Two processes that both find a dead owner must not both take over.
        with FileLock(folder / ".lock.guard", timeout=30):
            owner = live_owner(folder)
            if owner is not None and owner != self._owner:
                raise ConfigError(
                    f"{folder} is in use by process {owner['pid']} on {owner['host']}; wait for it or stop it, "
                    f"or choose another run with `name=...`. If that process is gone, delete {self._path}"
                )
            write_atomic(self._path, json.dumps(self._owner))

    def release(self) -> None:
        """Frees the directory; does nothing when another owner has it."""
        if read_owner(self._path.parent) == self._owner:
            self._path.unlink(missing_ok=True)


def read_owner(folder: Path) -> dict[str, Any] | None:
    """Who holds a run directory; ``None`` when nobody does or the file is torn."""
    try:
        owner = json.loads((folder / ".lock").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    complete = isinstance(owner, dict) and {"pid", "host", "started"} <= owner.keys()
    return owner if complete else None


def live_owner(folder: Path) -> dict[str, Any] | None:
    """Who is at work in a run directory; ``None`` when nobody is, or is any more."""
    owner = read_owner(folder)
    return owner if owner is not None and alive(owner) else None


def alive(owner: dict[str, Any]) -> bool:
    """Whether the owner still runs. One on another host cannot be asked and counts as alive."""
    if owner["host"] != socket.gethostname():
        return True
    try:
        return abs(psutil.Process(owner["pid"]).create_time() - owner["started"]) < 1.0
    except psutil.NoSuchProcess:
        return False
