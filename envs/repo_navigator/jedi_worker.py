"""One resolver process: reads questions as JSON lines, answers each as it is found.

Run as a script in isolated mode, never imported by an episode: jedi is not thread-safe, may take
seconds or hundreds of megabytes, and must be killable. Imports of the analysed code are looked up in
the repository and the standard library only, never in this machine's site-packages, and extension
modules are not loaded.

A question is `{"root", "import_roots", "path", "text", "positions": [[line, column], ...]}`; the
answer is one line a position, `{"targets": [...]}` or `{"error": "..."}`, in order.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import sysconfig
from typing import Any

PR_SET_PDEATHSIG = 1


def main(cache_dir: str, memory_mb: int) -> None:
    """Serves until standard input closes."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    limit = memory_mb * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    import jedi

    jedi.settings.cache_directory = cache_dir
    environment = jedi.create_environment(sys.executable, safe=False)
    projects: dict[str, Any] = {}
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not become an answer
    for line in sys.stdin:
        question = json.loads(line)
        root = question["root"]
        if root not in projects:
            paths = [os.path.join(root, r).rstrip("/") for r in question["import_roots"]]
            projects = {root: jedi.Project(root, sys_path=[*paths, *standard_library()], smart_sys_path=False)}
        for answer in answers(jedi, environment, projects[root], question):
            out.write(json.dumps(answer) + "\n")
            out.flush()


def standard_library() -> list[str]:
    return [sysconfig.get_paths()["stdlib"]]


def answers(jedi: Any, environment: Any, project: Any, question: dict[str, Any]) -> Any:
    """One answer a position; an exception inside jedi is an answer too."""
    script = None
    for line, column in question["positions"]:
        try:
            if script is None:
                script = jedi.Script(question["text"], path=question["path"], project=project, environment=environment)
            found = script.goto(line, column, follow_imports=True, follow_builtin_imports=True)
            targets = [describe(name, question["root"]) for name in found]
            # jedi collects names in sets: their order differs from one process to the next
            yield {"targets": sorted(targets, key=lambda t: (not t["path"], t["path"], t["line"], t["full_name"]))}
        except MemoryError:
            raise
        except Exception as error:  # jedi raises KeyError, RecursionError and others on odd code
            yield {"error": type(error).__name__}


def describe(name: Any, root: str) -> dict[str, Any]:
    """A target in the repository by path and line, any other by its dotted name only."""
    path = os.path.realpath(name.module_path) if name.module_path else ""
    inside = path.startswith(root + os.sep)
    return {
        "path": os.path.relpath(path, root) if inside else "",
        "line": (name.line or 0) if inside else 0,
        "name": name.name or "",
        "full_name": name.full_name or name.name or "",
        "kind": name.type,
    }


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
