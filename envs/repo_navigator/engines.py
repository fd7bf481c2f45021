"""The resolvers that a user can choose, by name."""

from __future__ import annotations

from envs.repo_navigator.backend import ProcessBackend
from envs.repo_navigator.jedi_backend import jedi_backend
from envs.repo_navigator.lsp import SERVERS, lsp_backend

ENGINES = ("jedi", *SERVERS)


def make_backend(engine: str, workers: int = 2) -> ProcessBackend:
    """A resolver of `ENGINES`.

    Raises:
        ValueError: there is none of that name.
        ModuleNotFoundError: its package is not installed.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine is one of {ENGINES}, not {engine!r}")
    return jedi_backend(workers) if engine == "jedi" else lsp_backend(engine, workers)
