"""A new run from an old one's state."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from rl.checkpoint.changes import Change, config_changes, file_changes, refuse
from rl.checkpoint.store import CheckpointStore, retention
from rl.config import load_resolved
from rl.config.errors import ConfigError
from rl.tracking.jsonable import line
from rl.tracking.run_directory import RunDirectory


def fork(run: Path, at: str, overrides: Sequence[str], *, force: bool = False) -> tuple[Path, list[Change]]:
    """Makes a run directory with the state and the metrics of ``run`` at one of its checkpoints.

    The old run stays as it is. `hone resume` goes on with the new one.

    Args:
        at: a step that has a checkpoint, ``latest`` or ``best``.
        overrides: ``key=value``; ``name`` or ``run_dir`` must be among them.
        force: accept changed files and settings that the saved state is about.

    Returns:
        The new folder, and the settings that differ.

    Raises:
        ConfigError: the place is taken, or a change is refused as by `resume`.
        CheckpointError: there is no such checkpoint.
    """
    old = RunDirectory.open(run, lock=False)
    before, resolved = load_resolved(old.config_path).config, load_resolved(old.config_path, overrides)
    config = resolved.config
    if before.method != "rl":
        raise ConfigError(f"method={before.method}: train a new run from it with model.path={run}@latest")
    checkpoint = CheckpointStore(old.checkpoints, retention(before.checkpoint)).find(at)
    if Path(config.run_dir).expanduser().resolve() / config.name == old.path:
        raise ConfigError("name: the new run needs a name of its own: add name=...")
    changes = config_changes(before, config)
    refuse(changes, file_changes(old.path), force=force)
    with RunDirectory.create(resolved) as new:
        store = CheckpointStore(new.checkpoints, retention(config.checkpoint))
        with store.writing(checkpoint.step, value=checkpoint.value()) as folder:
            shutil.copytree(checkpoint.path, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("manifest.json"))
        new.metrics_path.write_text(
            "".join(line(row) for row in old.metrics() if row["step"] <= checkpoint.step), encoding="utf-8"
        )
        new.update_state(forked_from=str(old.path), forked_at=checkpoint.step)
        return new.path, changes
