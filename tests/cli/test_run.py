"""`hone run ls` and `hone run stop`, on run directories held by real processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rl.cli.main import app
from rl.config import load
from rl.tracking.run_directory import RunDirectory
from tests.stack.runs import make_recipe

OWNER = """
import signal, sys
from rl.tracking.lock import RunLock
from pathlib import Path
lock = RunLock(Path(sys.argv[1]))
print("held", flush=True)
signal.pause() if sys.argv[2] == "ends" else [signal.signal(signal.SIGTERM, signal.SIG_IGN), signal.pause()]
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    recipe = make_recipe(tmp_path)
    monkeypatch.chdir(tmp_path)
    directory = RunDirectory.create(load(str(recipe), [f"run_dir={tmp_path}/runs"]))
    lines = [{"step": 1, "reward/mean": 0.25}, {"step": 2, "reward/mean": 0.5, "eval/accuracy": 0.125}]
    (directory.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    directory.close()
    return directory.path


@pytest.fixture
def owner(run: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(run), getattr(request, "param", "ends")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def call(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["run", *arguments], env={"COLUMNS": "200"})
    return done.exit_code, done.output


def test_ls_shows_the_newest_values_and_who_is_at_work(run: Path, owner: subprocess.Popen[str]) -> None:
    code, text = call("ls", str(run.parent))
    row = next(line for line in text.splitlines() if line.strip().startswith("tiny"))
    assert code == 0 and f"process {owner.pid}" in row
    assert row.split()[-3:] == ["2", "0.5", "0.125"]
    owner.kill()
    owner.wait()
    assert "ended" in call("ls", str(run.parent))[1]


def test_ls_of_a_folder_without_runs_says_so(tmp_path: Path) -> None:
    code, text = call("ls", str(tmp_path))
    assert code == 2 and "holds no runs" in text


def test_stop_asks_the_owner_and_waits(run: Path, owner: subprocess.Popen[str]) -> None:
    import threading

    threading.Thread(target=owner.wait).start()  # a zombie would count as alive
    code, text = call("stop", str(run))
    assert code == 0 and "hone resume" in text, text
    assert owner.wait() == -signal.SIGTERM
    code, text = call("stop", str(run))
    assert code == 2 and "not at work" in text


@pytest.mark.parametrize("owner", ["stays"], indirect=True)
def test_stop_says_when_the_owner_stays(run: Path, owner: subprocess.Popen[str]) -> None:
    code, text = call("stop", str(run), "--wait", "1")
    assert code == 2 and "still at work" in text
    assert owner.poll() is None


def test_stop_does_not_signal_a_process_of_another_host(run: Path) -> None:
    (run / ".lock").write_text(json.dumps({"pid": 1, "host": "elsewhere", "started": 0.0}))
    code, text = call("stop", str(run))
    assert code == 2 and "elsewhere" in text
