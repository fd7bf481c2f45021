"""The sandbox as a server: `POST /run_code` in SandboxFusion's form, each program isolated as in `rewards.sandbox`."""

from __future__ import annotations

import hmac
import json
import logging
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rewards.contract import RewardError
from rewards.languages import LANGUAGES, build, named
from rewards.remote import THEIR_NAMES
from rewards.sandbox import Level, Limits, SandboxError

log = logging.getLogger(__name__)
MOST_BYTES = 16_000_000
"""Of a request."""
MOST_SECONDS = 600.0
_OURS = {THEIR_NAMES.get(name, name): name for name in LANGUAGES}


class SandboxServer(ThreadingHTTPServer):
    """Serves until `shutdown`.

    Args:
        programs: at most this many run at once; others wait.
        isolation: the least that every program gets.
        token: requests must carry it as ``Authorization: Bearer``; ``None``: none asked for.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(
        self, host: str, port: int, *, programs: int, isolation: Level = "limits", token: str | None = None
    ) -> None:
        super().__init__((host, port), _Handler)
        self.isolation, self.token = isolation, token
        self.turns = threading.BoundedSemaphore(programs)


class _Handler(BaseHTTPRequestHandler):
    server: SandboxServer
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_POST(self) -> None:
        token = self.server.token
        given = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        size = self.headers.get("Content-Length") or ""
        if token is not None and not hmac.compare_digest(given.encode(), token.encode()):
            return self._answer(401, {"message": "a token is wanted: Authorization: Bearer ..."}, close=True)
        if self.path != "/run_code":
            return self._answer(404, {"message": "POST /run_code"}, close=True)
        if not size.isdigit() or int(size) > MOST_BYTES:
            return self._answer(413, {"message": f"a request has a length of at most {MOST_BYTES} bytes"}, close=True)
        try:
            body = json.loads(self.rfile.read(int(size)))
            with self.server.turns:
                said = run_code(body, self.server.isolation)
        except (ValueError, TypeError, RewardError) as error:
            return self._answer(400, {"message": str(error)})
        except SandboxError as error:
            log.warning("%s", error)
            said = {"status": "SandboxError", "message": str(error), "compile_result": None, "run_result": None}
        return self._answer(200, said)

    def do_GET(self) -> None:
        self._answer(200, {"status": "ready"})

    def _answer(self, status: int, body: Mapping[str, Any], *, close: bool = False) -> None:
        data = json.dumps(body).encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if close:  # what the request still holds is not read
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


def run_code(body: Any, isolation: Level) -> dict[str, Any]:
    """The answer to one request.

    Raises:
        ValueError, RewardError: the request cannot be served, with words for its sender.
        SandboxError: this machine cannot run it.
    """
    if not isinstance(body, Mapping) or not isinstance(body.get("code"), str):
        raise ValueError("a request is a JSON object with `code` and `language`")
    language = str(body.get("language"))
    if language not in _OURS:
        raise ValueError(f"language {language!r} is none of {', '.join(_OURS)}")
    seconds, memory = float(body.get("run_timeout") or 10.0), int(body.get("memory_limit_MB") or -1)
    if not 0 < seconds <= MOST_SECONDS:
        raise ValueError(f"run_timeout must be above 0 and at most {MOST_SECONDS:g} seconds")
    limits = Limits(seconds=seconds, memory_mb=memory) if memory > 0 else Limits(seconds=seconds)
    kind = named(_OURS[language])
    program = build(body["code"], kind, isolation)
    compiled: dict[str, Any] = {"status": "Finished" if program else "Error", "return_code": 0 if program else 1}
    compiled |= {"execution_time": 0.0, "stdout": "", "stderr": "" if program else "the program does not compile"}
    answer: dict[str, Any] = {"message": "", "compile_result": compiled if kind.build else None, "files": {}}
    if program is None:
        return answer | {"status": "Failed", "run_result": None}
    outcome = program.run(str(body.get("stdin") or ""), limits, isolation)
    status = {"timeout": "TimeLimitExceeded", "output": "Error"}.get(outcome.verdict, "Finished")
    code = outcome.code if outcome.verdict == "ended" else -9
    ran: dict[str, Any] = {"status": status, "return_code": code, "execution_time": outcome.seconds}
    ran |= {"stdout": outcome.stdout, "stderr": outcome.stderr, "verdict": outcome.verdict}
    good = outcome.verdict == "ended" and outcome.code == 0
    return answer | {"status": "Success" if good else "Failed", "run_result": ran}
