"""What is different between a saved run and the one that would go on with it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl.config.errors import ConfigError
from rl.config.schema import Config

MEANING = (
    "model.path",
    "model.revision",
    "model.chat_template",
    "model.lora",
    "seed",
    "deterministic",
    "data",
    "prompt",
    "tasks_per_step",
    "samples_per_task",
    "environment",
    "planner",
    "algorithm.objective",
    "algorithm.token_advantage",
    "algorithm.teacher",
    "algorithm.reference_every",
)
"""Settings that the saved state is about: with others it would be another run."""
FIXED = ("method",)
"""Settings that the files of a checkpoint are bound to."""


@dataclass(frozen=True, slots=True)
class Change:
    """One difference, in words."""

    key: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.key}: {self.before!r} -> {self.after!r}"


def config_changes(before: Config, after: Config) -> list[Change]:
    """Settings whose values differ, by key."""
    old, new = _leaves(dataclasses.asdict(before)), _leaves(dataclasses.asdict(after))
    keys = dict.fromkeys([*old, *new])
    return [Change(key, old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)]


def file_changes(run: Path) -> list[Change]:
    """User files (rewards, environments, parts) that are not as they were when the run began."""
    index = run / "files" / "index.json"
    if not index.is_file():
        return []
    changes = []
    for entry in json.loads(index.read_text(encoding="utf-8")):
        path = Path(entry["path"])
        now = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
        if now != entry["sha256"]:
            after = "missing" if now is None else now[:8]
            changes.append(Change(str(path), entry["sha256"][:8], after))
    return changes


def refuse(changes: list[Change], files: list[Change], *, force: bool) -> None:
    """Raises ConfigError for changes that the saved state does not bear, or that nobody has accepted."""
    bound = [str(c) for c in changes if _under(c.key, FIXED)]
    if bound:
        raise ConfigError(f"the checkpoint's files are bound to {'; '.join(bound)}. Resume without that change")
    meant = [str(c) for c in [*(c for c in changes if _under(c.key, MEANING)), *files]]
    if meant and not force:
        raise ConfigError(
            f"the saved state belongs to other settings or files: {'; '.join(meant)}. "
            "Undo the change, start a new run, or accept it with --force"
        )


def _under(key: str, prefixes: tuple[str, ...]) -> bool:
    return any(key == prefix or key.startswith(f"{prefix}.") for prefix in prefixes)


def _leaves(value: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(value, dict) and value:
        return {k: v for key, part in value.items() for k, v in _leaves(part, f"{prefix}.{key}".lstrip(".")).items()}
    return {prefix: value}
