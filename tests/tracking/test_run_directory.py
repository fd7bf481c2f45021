"""Run directories: what is in them, who may use them, what survives a crash."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys

import pytest

from rl.config import ConfigError, load, load_resolved
from rl.tracking.run_directory import RunDirectory


@pytest.fixture
def resolved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reward = tmp_path / "mine.py"
    reward.write_text("def f(completions): return [0.0 for _ in completions]\n")
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        "# mine\nname: one\nmodel: {path: smollm2-135m}\ndata: {sources: [{path: reasoning_gym:chain_sum, size: 10}]}\n"
        "reward: {functions: {a: {fn: 'mine.py:f'}}}\nstop: {steps: 1}\n"
    )
    return load(recipe)


def test_holds_config_recipe_versions_and_copies(resolved, tmp_path):
    with RunDirectory.create(resolved) as run:
        assert run.path == tmp_path / "runs" / "one"
        assert load_resolved(run.config_path).config == resolved.config
        assert (run.path / "recipe.yaml").read_text().startswith("# mine")
        assert json.loads((run.path / "versions.json").read_text())["numpy"]
        entry = json.loads((run.path / "files" / "index.json").read_text())[0]
        copy = (run.path / "files" / entry["copy"]).read_bytes()
        assert entry["sha256"] == hashlib.sha256(copy).hexdigest()
        assert copy == (tmp_path / "mine.py").read_bytes()
        assert run.checkpoints.is_dir() and run.run_id.startswith("one-")


def test_git_commit_and_patch(resolved, tmp_path):
    def git(*args):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *args], check=True, capture_output=True)

    git("init", "-q")
    git("add", "mine.py")
    git("commit", "-qm", "x")
    (tmp_path / "mine.py").write_text("def f(completions): return [1.0]\n")
    with RunDirectory.create(resolved) as run:
        facts = json.loads((run.path / "git.json").read_text())
        assert facts["dirty"] and len(facts["commit"]) == 40
        assert "+def f(completions): return [1.0]" in (run.path / "git.patch").read_text()


def test_existing_directory_is_refused_then_overwritten(resolved):
    with RunDirectory.create(resolved) as run:
        (run.path / "metrics.jsonl").write_text('{"step": 1}\n')
        first = run.run_id
    with pytest.raises(ConfigError, match=r"hone resume .*one.*--overwrite"):
        RunDirectory.create(resolved)
    with RunDirectory.create(resolved, overwrite=True) as run:
        assert not run.metrics_path.exists() and run.run_id != first


def test_overwrite_spares_what_is_no_run(resolved, tmp_path):
    precious = tmp_path / "runs" / "one" / "thesis.txt"
    precious.parent.mkdir(parents=True)
    precious.write_text("x")
    with pytest.raises(ConfigError, match="no run directory"):
        RunDirectory.create(resolved, overwrite=True)
    assert precious.read_text() == "x"


def test_live_owner_blocks_and_dead_owner_does_not(resolved):
    RunDirectory.create(resolved).close()
    path = resolved.config.run_dir + "/one"
    code = (
        "import sys,time; from rl.tracking.run_directory import RunDirectory; "
        f"r=RunDirectory.open({path!r}); print('held', flush=True); time.sleep(100)"
    )
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=f"in use by process {other.pid}"):
            RunDirectory.open(path)
        with pytest.raises(ConfigError, match="in use"):
            RunDirectory.create(resolved, overwrite=True)
        RunDirectory.open(path, lock=False)
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait()
    RunDirectory.open(path).close()


def test_reused_pid_does_not_block(resolved):
    run = RunDirectory.create(resolved)
    lock = run.path / ".lock"
    owner = json.loads(lock.read_text())
    lock.write_text(json.dumps(owner | {"pid": os.getppid(), "started": 1.0}))
    RunDirectory.open(run.path).close()
    assert not lock.exists()


def test_trim_moves_later_and_torn_lines(resolved):
    with RunDirectory.create(resolved) as run:
        run.metrics_path.write_text('{"step": 0}\n{"step": 1}\n{"step": 2}\n{"step": 3}\n{"step": 4, "rew')
        assert run.trim_metrics(2) == 2
        assert [row["step"] for row in run.metrics()] == [0, 1, 2]
        assert run.metrics_path.read_text().endswith('{"step": 2}\n')
        assert (run.path / "metrics.abandoned.jsonl").read_text() == '{"step": 3}\n{"step": 4, "rew\n'
        assert run.trim_metrics(2) == 0


def test_open_names_neighbours(resolved):
    RunDirectory.create(resolved).close()
    with pytest.raises(ConfigError, match=r"no run directory.*one"):
        RunDirectory.open("runs/onne")


@pytest.mark.parametrize("name", ["../up", "a/b", ".."])
def test_name_is_plain(resolved, name):
    resolved.config.name = name
    with pytest.raises(ConfigError, match="plain folder name"):
        RunDirectory.create(resolved)


def test_no_secret_is_written(resolved, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "canary-77131")
    with RunDirectory.create(resolved) as run:
        for file in run.path.rglob("*"):
            assert not file.is_file() or b"canary-77131" not in file.read_bytes(), file
