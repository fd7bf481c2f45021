"""Hostile programs end at their limits, leave nothing, and do not reach what is not theirs."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from rewards.sandbox import Limits, SandboxError, _identity, level, python, run

QUICK = Limits(seconds=3, memory_mb=256, processes=16)


def census(word: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and word.encode() in (entry / "cmdline").read_bytes():
                found.append(entry.name)
        except OSError:
            continue
    return found


def test_a_program_reads_stdin_and_answers() -> None:
    outcome = python("print(int(input()) * 2)", stdin="21\n")
    assert outcome.succeeded
    assert outcome.stdout == "42\n"


def test_exit_codes_and_errors_are_kept() -> None:
    assert python("import sys; sys.exit(3)").code == 3
    outcome = python("1/0")
    assert outcome.code == 1
    assert "ZeroDivisionError" in outcome.stderr


@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(60)", "input()\nwhile True: pass"])
def test_endless_programs_are_ended(code: str) -> None:
    began = time.monotonic()
    outcome = python(code, stdin="x\n", limits=Limits(seconds=1))
    assert outcome.verdict == "timeout"
    assert time.monotonic() - began < 4


def test_memory_is_bounded() -> None:
    outcome = python("x = bytearray(10**9); print('got it')", limits=QUICK)
    assert not outcome.succeeded
    assert "got it" not in outcome.stdout


def test_output_is_bounded() -> None:
    outcome = python("while True: print('x' * 1000)", limits=Limits(seconds=5, output_bytes=10_000))
    assert outcome.verdict == "output"
    assert len(outcome.stdout) == 10_000


def test_files_are_bounded() -> None:
    code = "f = open('big', 'wb')\nfor _ in range(10_000): f.write(b'x' * 2**20); f.flush()\nprint('done')"
    outcome = python(code, limits=Limits(seconds=5, file_mb=4))
    assert not outcome.succeeded
    assert "done" not in outcome.stdout


@pytest.mark.skipif(not _identity() and os.geteuid() == 0, reason="root is not bound by process limits")
def test_a_fork_bomb_is_bounded_and_gone() -> None:
    mark = f"bomb{time.time_ns()}"
    code = f"import os, time  # {mark}\nfor _ in range(200):\n    if not os.fork(): time.sleep(60)"
    outcome = run(["python", "-c", code], limits=Limits(seconds=5, processes=16))
    assert "BlockingIOError" in outcome.stderr
    assert census(mark) == []


def test_a_daemon_dies_with_its_program() -> None:
    mark = f"daemon{time.time_ns()}"
    code = f"""
import os, subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)  # {mark}"], start_new_session=True,
                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print("left")
"""
    assert python(code).stdout == "left\n"
    deadline = time.monotonic() + 3
    while census(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert census(mark) == []


@pytest.mark.skipif(level() != "namespaces", reason="needs namespaces")
def test_there_is_no_network() -> None:
    code = "import socket\nsocket.create_connection(('127.0.0.1', 1), timeout=1)"
    assert "unreachable" in python(code).stderr.lower()


@pytest.mark.skipif(level() == "limits", reason="needs another user or namespaces")
def test_other_processes_memory_is_out_of_reach() -> None:
    code = f"print(open('/proc/{os.getpid()}/mem', 'rb').read(1))"
    assert not python(code).succeeded


def test_the_environment_is_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "canary-1234")
    assert "canary" not in python("import os; print(dict(os.environ))").stdout


def test_the_folder_is_private_and_removed() -> None:
    outcome = python("import os; open('mine', 'w').write('x'); print(os.getcwd(), os.listdir('.'))")
    folder = outcome.stdout.split()[0]
    assert "mine" in outcome.stdout
    assert not Path(folder).exists()


def test_too_little_isolation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewards.sandbox.level", lambda: "limits")
    with pytest.raises(SandboxError, match="'namespaces' is asked for"):
        python("print(1)", at_least="namespaces")


def test_a_program_that_is_not_there_is_named() -> None:
    outcome = run(["no-such-program"])
    assert outcome.code != 0
    assert "no-such-program" in outcome.stderr
