"""A language server as the resolver: basedpyright (the paper's family) or ty (small and quick).

Both would answer from this machine's packages and obey the repository's own settings. They are
opened on a private folder instead, which holds settings of ours, an empty virtual environment and
nothing else; the repository is named there as the place where imports start. A server knows one
repository: another one gets a new server.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
import json
import os
import re
import shutil
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from envs.repo_navigator.backend import Answer, Pipes, ProcessBackend, Question, Target
from envs.repo_navigator.source import read_source

START_S = 30.0
"""A server that has not greeted by then is broken."""
_DIE_WITH_PARENT = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"
_SURROGATE = re.compile("[\ud800-\udfff]")
_NAME = re.compile(r"\w+")
_OUTSIDE = re.compile(r".*/(?:stdlib|python3\.\d+|site-packages|stubs/[^/]+)/(.+?)(?:/__init__)?\.pyi?$")
"""The module of a file that is not the repository's."""
_UTF16 = "utf-16"
_AGAIN = (-32800, -32801, -32802)
"""Errors of a question that was cancelled, by the client, by a change or by the server: it is asked again."""


def _ty_settings(roots: list[str]) -> str:
    return f'[environment]\nroot = {json.dumps(roots)}\npython = "env"\npython-platform = "linux"\n'


def _pyright_settings(roots: list[str]) -> str:
    where = {"include": roots, "extraPaths": roots, "venvPath": ".", "venv": "env", "pythonPlatform": "Linux"}
    return json.dumps(where)


@dataclass(frozen=True, slots=True)
class _Server:
    """How one server is started and told where imports start."""

    command: tuple[str, ...]
    settings_file: str
    settings: Callable[[list[str]], str]
    memory_mb: int
    """Resident memory after which it is replaced."""


SERVERS: Mapping[str, _Server] = {
    "ty": _Server(("ty", "server"), "ty.toml", _ty_settings, 1024),
    "basedpyright": _Server(
        ("basedpyright-langserver", "--stdio"), "pyrightconfig.json", _pyright_settings, memory_mb=2048
    ),
}
"""By the name of the package that brings it."""


def lsp_backend(package: str, workers: int = 2) -> ProcessBackend:
    """One of `SERVERS` in `workers` processes.

    Raises:
        ModuleNotFoundError: its package is not installed.
    """
    server = SERVERS[package]
    scripts = sysconfig.get_path("scripts")
    program = shutil.which(server.command[0], path=os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)]))
    if importlib.util.find_spec(package) is None or program is None:
        raise ModuleNotFoundError(f"engine {package!r} needs its package: pip install 'hone-rl[repo-navigator-lsp]'")
    started = [sys.executable, "-I", "-c", _DIE_WITH_PARENT, program, *server.command[1:]]
    return ProcessBackend(
        f"{package}-{importlib.metadata.version(package)}",
        lambda question: _LanguageServer(started, server, question),
        workers=workers,
        recycle_queries=5000,
        recycle_mb=server.memory_mb,
    )


class _LanguageServer:
    """One server on one snapshot, spoken to in JSON-RPC."""

    def __init__(self, command: list[str], server: _Server, question: Question) -> None:
        self._root = question.root
        self._folder = tempfile.TemporaryDirectory(prefix="hone-lsp-", ignore_cleanup_errors=True)
        home = Path(self._folder.name).resolve()
        roots = [os.path.join(question.root, r).rstrip("/") for r in question.import_roots]
        (home / server.settings_file).write_text(server.settings(roots), encoding="utf-8")
        venv.create(home / "env", with_pip=False)
        self._ids = itertools.count(1)
        self._pipes = Pipes(command, cwd=str(home), env={"PATH": "/usr/bin:/bin", "HOME": str(home)})
        self.memory_mb = self._pipes.memory_mb
        try:
            self._utf16 = self._initialize(home)
        except BaseException:
            self.kill()
            raise

    def serves(self, root: str) -> bool:
        return root == self._root

    def ask(self, question: Question) -> tuple[list[Answer], bool]:
        deadline = time.monotonic() + question.timeout_s
        uri = Path(question.path).as_uri()
        text = _SURROGATE.sub("\ufffd", question.text)  # they have no place in JSON
        lines = text.split("\n")
        document = {"uri": uri, "languageId": "python", "version": 1, "text": text}
        pending = {next(self._ids): i for i in range(len(question.positions))}

        def asked(number: int) -> dict[str, Any]:
            line, column = question.positions[pending[number]]
            character = _units(lines[line - 1][:column]) if self._utf16 else column
            where = {"textDocument": {"uri": uri}, "position": {"line": line - 1, "character": character}}
            return {"jsonrpc": "2.0", "id": number, "method": "textDocument/definition", "params": where}

        opened = _notification("textDocument/didOpen", {"textDocument": document})
        answers: dict[int, Answer] = {}
        healthy = self._send([opened, *map(asked, pending)], deadline)
        while healthy and len(answers) < len(question.positions):
            message = self._receive(deadline)
            if message is None:
                healthy = False
            elif (position := pending.pop(message.get("id", 0), None)) is not None:
                if message.get("error", {}).get("code") in _AGAIN:
                    pending[again := next(self._ids)] = position
                    healthy = self._send([asked(again)], deadline)
                else:
                    answers[position] = self._answer(message)
        closed = _notification("textDocument/didClose", {"textDocument": {"uri": uri}})
        healthy = healthy and self._send([closed], deadline)
        missing = Answer(error=self._pipes.failure)
        return [answers.get(i, missing) for i in range(len(question.positions))], healthy

    def kill(self) -> None:
        self._pipes.kill()
        self._folder.cleanup()

    def _initialize(self, home: Path) -> bool:
        """Greets the server; returns whether it counts columns in UTF-16 units."""
        deadline = time.monotonic() + START_S
        folder = {"uri": home.as_uri(), "name": "hone"}
        capabilities = {
            "general": {"positionEncodings": ["utf-32", _UTF16]},
            "workspace": {"configuration": True, "workspaceFolders": True},
            "textDocument": {"definition": {"linkSupport": True}},
        }
        params = {
            "processId": os.getpid(),
            "rootUri": home.as_uri(),
            "workspaceFolders": [folder],
            "capabilities": capabilities,
        }
        hello = next(self._ids)
        sent = self._send([{"jsonrpc": "2.0", "id": hello, "method": "initialize", "params": params}], deadline)
        message: dict[str, Any] | None = None
        while sent and (message := self._receive(deadline)) is not None and message.get("id") != hello:
            pass
        if message is None or "result" not in message:
            raise RuntimeError(f"the language server did not start: {message or self._pipes.failure}")
        self._send([_notification("initialized", {})], deadline)
        encoding: str = message["result"]["capabilities"].get("positionEncoding", _UTF16)
        return encoding == _UTF16

    def _send(self, messages: list[dict[str, Any]], deadline: float) -> bool:
        bodies = [json.dumps(m).encode() for m in messages]
        return self._pipes.write(b"".join(b"Content-Length: %d\r\n\r\n%b" % (len(b), b) for b in bodies), deadline)

    def _receive(self, deadline: float) -> dict[str, Any] | None:
        """The next reply; requests of the server are answered on the way. `None`: too late, or ended."""
        while True:
            length = 0
            while header := (self._pipes.read_line(deadline) or b"").strip():
                name, _, value = header.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            body = self._pipes.read(length, deadline) if length else None
            if body is None:
                return None
            message: dict[str, Any] = json.loads(body)
            if "method" not in message:
                return message
            if "id" in message:  # it asks for settings, or to register what it can do
                items = message.get("params", {}).get("items", ())
                settings: list[object] = [{} for _ in items]
                result = settings if message["method"] == "workspace/configuration" else None
                self._send([{"jsonrpc": "2.0", "id": message["id"], "result": result}], deadline)

    def _answer(self, message: Mapping[str, Any]) -> Answer:
        if "error" in message:
            return Answer(error="ResponseError")
        found = message.get("result") or []
        targets = {self._target(t) for t in (found if isinstance(found, list) else [found])}
        sources = {t.path for t in targets if t.path.endswith(".py")}
        kept = [t for t in targets if not (t.path.endswith(".pyi") and t.path.removesuffix("i") in sources)]
        return Answer(tuple(sorted(kept, key=lambda t: (not t.path, t.path, t.line, t.full_name))))

    def _target(self, location: Mapping[str, Any]) -> Target:
        """A location of the protocol, or a link to one, as a target."""
        uri = location.get("targetUri") or location["uri"]
        start = (location.get("targetSelectionRange") or location["range"])["start"]
        path = os.path.realpath(unquote(urlsplit(uri).path))
        inside = path.startswith(self._root + os.sep)
        relative = os.path.relpath(path, self._root) if inside else ""
        match = None if inside else _OUTSIDE.search(path)
        module = match[1] if match else os.path.splitext(relative or os.path.basename(path))[0]
        module = module.removesuffix("/__init__").replace("/", ".")
        if start["line"] == start["character"] == 0:
            return Target(relative, int(inside), module.rpartition(".")[2], module, "module")
        name, kind = _named(Path(path), start["line"] + 1, start["character"], self._utf16)
        return Target(relative, start["line"] + 1 if inside else 0, name, f"{module}.{name}", kind)


def _named(path: Path, line: int, character: int, utf16: bool) -> tuple[str, str]:
    """The name at a position, and what it names."""
    try:
        source = read_source(path)
    except OSError:
        return "", "statement"
    text = source.lines[line - 1] if line <= len(source.lines) else ""
    column = len(text.encode("utf-16-le")[: 2 * character].decode("utf-16-le", "ignore")) if utf16 else character
    match = _NAME.match(text, column)
    name = match[0] if match else ""
    definition = source.at(line)
    if definition is not None and definition.qualname.rpartition(".")[2] == name:
        return name, definition.kind
    header = source.statement(line)[2]
    return name, "param" if type(header).__name__ in ("FunctionDef", "AsyncFunctionDef") else "statement"


def _units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def _notification(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params}
