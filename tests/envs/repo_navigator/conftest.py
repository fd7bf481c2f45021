"""A store in a temporary folder and one pair of resolver processes for all tests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("jedi")

from envs.base import Limits
from envs.repo_navigator.backend import ProcessBackend
from envs.repo_navigator.jedi_backend import jedi_backend
from envs.repo_navigator.snapshot import SnapshotStore


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path / "snapshots")


@pytest.fixture(scope="session")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessBackend]:
    made = jedi_backend(2, cache_dir=tmp_path_factory.mktemp("jedi"))
    yield made
    made.close()


@pytest.fixture
def limits() -> Limits:
    return make_limits()


def make_limits(tokens: int = 6000, seconds: float = 60.0) -> Limits:
    return Limits(tokens, count, time.monotonic() + seconds)


def count(text: str) -> int:
    """Stands for a tokenizer: a token is four characters."""
    return (len(text) + 3) // 4
