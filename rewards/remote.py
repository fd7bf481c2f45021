"""Programs run by a sandbox on another machine, over HTTP: SandboxFusion's `/run_code`, or `hone sandbox`.

For pods that forbid namespaces: the programs run where isolation is allowed, and verdicts are the same.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rewards.contract import RewardError, RewardUnavailable
from rewards.sandbox import Level, Limits, Outcome
from rewards.web import post

THEIR_NAMES = {"c++": "cpp", "javascript": "nodejs"}
"""Languages that SandboxFusion calls otherwise; it has no C."""
TOKEN_VARIABLE = "HONE_SANDBOX_TOKEN"
COMPILE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class RemoteProgram:
    """Source that is sent with every run."""

    code: str
    language: str
    """A name of `rewards.languages.LANGUAGES`."""
    url: str

    def run(self, stdin: str, limits: Limits, isolation: Level) -> Outcome:
        """One run over there; ``isolation`` is that machine's business.

        Raises:
            RewardUnavailable: the sandbox cannot be reached, or says that it failed itself.
            RewardError: it refuses the request.
        """
        body = {
            "code": self.code,
            "language": THEIR_NAMES.get(self.language, self.language),
            "stdin": stdin,
            "compile_timeout": COMPILE_SECONDS,
            "run_timeout": limits.seconds,
            "memory_limit_MB": limits.memory_mb,
            "files": {},
            "fetch_files": [],
        }
        token = os.environ.get(TOKEN_VARIABLE)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        url = f"{self.url.rstrip('/')}/run_code"
        return read_outcome(post(url, body, headers, COMPILE_SECONDS + limits.seconds + 30), url)


def read_outcome(said: Any, url: str) -> Outcome:
    """The outcome in an answer of SandboxFusion's form. A program that does not compile ends with code 1."""
    if not isinstance(said, Mapping) or said.get("status") not in ("Success", "Failed", "SandboxError"):
        raise RewardError(f"{url} answered in another form than SandboxFusion's: {str(said)[:200]}")
    if said["status"] == "SandboxError":
        raise RewardUnavailable(f"{url}: {said.get('message') or 'the sandbox failed'}")
    ran = said.get("run_result")
    if ran is None:
        built = said.get("compile_result") or {}
        return Outcome("ended", 1, "", str(built.get("stderr") or said.get("message") or ""), 0.0)
    verdict = ran.get("verdict")  # of our own server, which knows of floods of output too
    if verdict not in ("ended", "timeout", "output"):
        verdict = "timeout" if ran.get("status") == "TimeLimitExceeded" else "ended"
    code = ran.get("return_code")
    return Outcome(
        verdict,
        int(code) if code is not None else 0 if ran.get("status") == "Finished" else 1,
        str(ran.get("stdout") or ""),
        str(ran.get("stderr") or ""),
        float(ran.get("execution_time") or 0.0),
    )
