"""A process that scores: requests come framed on stdin, answers leave framed on stdout.

The controller pickles requests for its own process; answers are JSON, so nothing that a reward made is
unpickled. What a reward prints goes to stderr.
"""

from __future__ import annotations

import functools
import json
import os
import pickle
import struct
import sys
import traceback
from pathlib import Path
from typing import Any, BinaryIO

from rewards.contract import RewardError, RewardUnavailable, arguments_for, checked, name_of
from rewards.loading import load_reward

HEADER = struct.Struct("<Q")


def main() -> None:
    """Serves requests until stdin ends."""
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _die_with_parent()
    _limit_memory(int(sys.argv[1]))
    while (request := read_frame(requests)) is not None:
        write_frame(answers, json.dumps(_answer(pickle.loads(request))).encode())


def read_frame(stream: BinaryIO) -> bytes | None:
    """The next frame; ``None`` at the end of the stream."""
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    (size,) = HEADER.unpack(header)
    body = stream.read(size)
    return body if len(body) == size else None


def write_frame(stream: BinaryIO, body: bytes) -> None:
    """One frame, at once."""
    stream.write(HEADER.pack(len(body)) + body)
    stream.flush()


_load = functools.cache(load_reward)


def _answer(request: tuple[str, str, Any, Any, Any]) -> dict[str, Any]:
    spec, base_dir, options, tasks, trajectories = request
    try:
        fn = _load(spec, Path(base_dir))
        if not trajectories:
            return {"scores": []}
        scores = fn(**arguments_for(fn, tasks, trajectories, options))
        return {"scores": checked(fn, scores, len(trajectories))}
    except MemoryError:
        return {"memory": True}
    except RewardUnavailable as error:
        return {"unavailable": str(error)}
    except RewardError as error:
        return {"error": str(error)}
    except Exception as error:  # user code may raise anything
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename}:{last.lineno}"
        return {"error": f"{name_of(_load(spec, Path(base_dir)))} raised {type(error).__name__}: {error} ({where})"}


def _die_with_parent() -> None:
    """A killed controller leaves no process behind, not even one that is stuck in a reward (Linux)."""
    if sys.platform == "linux":
        import ctypes
        import signal

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _limit_memory(megabytes: int) -> None:
    if megabytes and sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))


if __name__ == "__main__":
    main()
