"""A sandbox behind HTTP gives the verdicts of the one here."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from rewards.code import code_tests, judge
from rewards.contract import RewardError, RewardUnavailable
from rewards.remote import TOKEN_VARIABLE, read_outcome
from rewards.sandbox import Limits
from rewards.sandbox_server import SandboxServer

TESTS = [{"input": "3\n", "output": "6"}, {"input": "5\n", "output": "10"}]
PROGRAMS = {
    "right": "print(2 * int(input()))",
    "half": "n = int(input())\nprint(6)",
    "raises": "raise SystemExit(3)",
    "hangs": "while True: pass",
    "floods": "while True: print('x' * 10000)",
    "network": "import socket\nsocket.create_connection(('127.0.0.1', 1), 1)",
    "odd": "import sys\nsys.stdout.buffer.write(b'\\xff\\xfe')",
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = SandboxServer("127.0.0.1", 0, programs=2)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("name", PROGRAMS)
def test_verdicts_are_those_of_the_local_sandbox(url: str, name: str) -> None:
    text, limits = f"```python\n{PROGRAMS[name]}\n```", Limits(seconds=1.5)
    here = judge(text, TESTS, limits)
    assert judge(text, TESTS, limits, sandbox=url) == here
    assert here[0] == {"right": "passed", "half": "passed", "hangs": "timeout", "floods": "output"}.get(
        name, "wrong" if name == "odd" else "error"
    )


def test_assertions_and_compiled_languages(url: str) -> None:
    text = "```python\ndef f(x):\n    return x + 1\n```"
    assert judge(text, ["assert f(1) == 2", "assert f(1) == 3"], sandbox=url) == ["passed", "wrong"]
    early = "```python\nimport os\nos._exit(0)\n```"
    assert judge(early, ["assert False"], sandbox=url) == ["error"]
    good = '```c\n#include <stdio.h>\nint main(){long n;scanf("%ld",&n);printf("%ld",2*n);}\n```'
    assert judge(good, TESTS, language="c", sandbox=url) == judge(good, TESTS, language="c") == ["passed", "passed"]
    assert judge("```c\nnot c\n```", TESTS, language="c", sandbox=url) == ["error", "error"]
    assert judge("no code at all", TESTS, sandbox=url) == ["error", "error"]


def test_many_at_once(url: str) -> None:
    said = [[{"role": "assistant", "content": f"```python\nprint({i} * int(input()))\n```"}] for i in range(12)]
    scores = asyncio.run(code_tests(said, [[{"input": "7", "output": "14"}]] * 12, sandbox=url))
    assert scores == [float(i == 2) for i in range(12)]


def post(url: str, body: bytes, **headers: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{url}run_code", body, headers), timeout=20) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"code": 3}', b'{"code": "", "language": "cobol"}', b"\xff",
     b'{"code": "", "language": "python", "run_timeout": "x"}',
     b'{"code": "", "language": "python", "run_timeout": 1e9}'],
)  # fmt: skip
def test_bad_requests_are_refused_and_harm_nothing(url: str, body: bytes) -> None:
    status, said = post(url, body)
    assert status in (400, 413) and said["message"]
    assert judge("```\nprint(2 * int(input()))\n```", TESTS, sandbox=url) == ["passed", "passed"]


def test_the_form_is_sandboxfusions(url: str) -> None:
    status, said = post(url, json.dumps({"code": "print(1)\nraise SystemExit(2)", "language": "python"}).encode())
    assert status == 200 and said["status"] == "Failed" and said["compile_result"] is None
    ran = said["run_result"]
    assert (ran["status"], ran["return_code"], ran["stdout"]) == ("Finished", 2, "1\n")


def test_answers_of_other_servers_are_read() -> None:
    late = {"status": "Failed", "run_result": {"status": "TimeLimitExceeded", "return_code": None, "stdout": None}}
    assert read_outcome(late, "u").verdict == "timeout"
    unbuilt = {"status": "Failed", "compile_result": {"status": "Error", "stderr": "syntax"}, "run_result": None}
    assert not read_outcome(unbuilt, "u").succeeded and read_outcome(unbuilt, "u").stderr == "syntax"
    fine = {"status": "Success", "run_result": {"status": "Finished", "return_code": 0, "stdout": "6\n"}}
    assert read_outcome(fine, "u").succeeded
    with pytest.raises(RewardUnavailable, match="disk full"):
        read_outcome({"status": "SandboxError", "message": "disk full"}, "u")
    with pytest.raises(RewardError, match="another form"):
        read_outcome({"ok": True}, "u")


def test_faults_of_the_way_there_are_the_infrastructures() -> None:
    with pytest.raises(RewardUnavailable):
        judge("```\nprint(1)\n```", TESTS, sandbox="http://127.0.0.1:9")

    class Busy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_error(503)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Busy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with pytest.raises(RewardUnavailable, match="503"):
        judge("```\nprint(1)\n```", TESTS, sandbox=f"http://127.0.0.1:{server.server_port}")
    server.shutdown()
    server.server_close()


def test_the_command_serves_who_has_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-m", "rl", "sandbox", "--port", "0", "--isolation", "limits"]
    open_to_all = subprocess.run(
        [*command, "--host", "0.0.0.0"], capture_output=True, text=True, timeout=60, env=os.environ
    )
    assert open_to_all.returncode == 2 and TOKEN_VARIABLE in open_to_all.stderr
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {TOKEN_VARIABLE: "abc"},
        # Under a shell that runs things in the background SIGINT is ignored, and that is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[2].rstrip(",")
        with pytest.raises(RewardError, match="401"):
            judge("```\nprint(1)\n```", TESTS, sandbox=url)
        monkeypatch.setenv(TOKEN_VARIABLE, "abc")
        assert judge("```\nprint(2 * int(input()))\n```", TESTS, sandbox=url) == ["passed", "passed"]
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
