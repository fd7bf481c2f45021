"""Hone: RL post-training for language models. `from rl import Run` starts a run from Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl.orchestration.run import Run

__all__ = ["Run"]


def __getattr__(name: str) -> Any:
    # Ray and torch load only when a run is really wanted: `hone config show` works without them.
    if name == "Run":
        from rl.orchestration.run import Run

        return Run
    raise AttributeError(f"module 'rl' has no attribute {name!r}")
