"""What may change over a resume, and what must be accepted first."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from rl.checkpoint.changes import config_changes, file_changes, refuse
from rl.config import load
from rl.config.errors import ConfigError


def changes(*overrides: str) -> list:
    return config_changes(load(None).config, load(None, overrides).config)


def test_more_steps_and_another_rate_are_shown_and_allowed() -> None:
    found = changes("stop.steps=9", "trainer.lr=1e-5")
    assert sorted(str(c) for c in found) == ["stop.steps: None -> 9", "trainer.lr: 1e-06 -> 1e-05"]
    refuse(found, [], force=False)


@pytest.mark.parametrize("override", ["seed=3", "model.path=other", "tasks_per_step=4", "prompt.max_tokens=9"])
def test_what_the_state_is_about_needs_force(override: str) -> None:
    found = changes(override)
    with pytest.raises(ConfigError, match=f"{override.split('=')[0]}.*--force"):
        refuse(found, [], force=False)
    refuse(found, [], force=True)


def test_what_the_files_are_bound_to_is_refused_even_then() -> None:
    with pytest.raises(ConfigError, match="method: 'rl' -> 'sft'"):
        refuse(changes("method=sft"), [], force=True)


def test_changed_and_missing_files_are_found(tmp_path: Path) -> None:
    reward, other = tmp_path / "reward.py", tmp_path / "other.py"
    reward.write_text("a = 1\n")
    other.write_text("b = 1\n")
    (tmp_path / "files").mkdir()
    index = [{"path": str(p), "sha256": hashlib.sha256(p.read_bytes()).hexdigest()} for p in (reward, other)]
    (tmp_path / "files" / "index.json").write_text(json.dumps(index))
    assert file_changes(tmp_path) == []
    reward.write_text("a = 2\n")
    other.unlink()
    found = file_changes(tmp_path)
    assert [c.after for c in found] == [hashlib.sha256(b"a = 2\n").hexdigest()[:8], "missing"]
    with pytest.raises(ConfigError, match=r"reward\.py.*--force"):
        refuse([], found, force=False)
