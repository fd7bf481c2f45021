"""Language servers as resolvers: the same jumps, the same isolation, and agreement with jedi."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from envs.repo_navigator import lsp
from envs.repo_navigator.backend import Answer, ProcessBackend
from envs.repo_navigator.engines import make_backend
from envs.repo_navigator.environment import RepoNavigator
from envs.repo_navigator.jump import JumpTool, Status
from envs.repo_navigator.repositories import bundled_files, bundled_names, open_snapshot
from envs.repo_navigator.snapshot import Snapshot, SnapshotStore
from envs.repo_navigator.source import read_source
from tests.envs.repo_navigator.test_jump import FILES, jump

ENGINES = ["ty", "basedpyright"]


@pytest.fixture(scope="module", params=ENGINES)
def server(request: pytest.FixtureRequest) -> Iterator[ProcessBackend]:
    pytest.importorskip(request.param)
    made = make_backend(request.param, 1)
    yield made
    made.close()


def sites_of(snapshot: Snapshot, number: int, seed: int = 0) -> dict[str, list[tuple[int, int]]]:
    """Uses of names, sampled over the files of a snapshot."""
    every = []
    for path in snapshot.files:
        source = read_source(snapshot.root / path)
        every += [(path, (u.line, u.column)) for n in sorted(source.names()) for u in source.occurrences(n)]
    sites: dict[str, list[tuple[int, int]]] = {}
    for path, place in random.Random(seed).sample(every, min(number, len(every))):
        sites.setdefault(path, []).append(place)
    return sites


def resolved(
    backend: ProcessBackend, snapshot: Snapshot, sites: dict[str, list[tuple[int, int]]]
) -> dict[tuple[str, int, int], Answer]:
    out = {}
    for path, places in sites.items():
        text = read_source(snapshot.root / path).text
        answers = asyncio.run(backend.resolve(snapshot, path, text, places, timeout_s=120))
        out.update({(path, *p): a for p, a in zip(places, answers, strict=True)})
    return out


def agreement(snapshot: Snapshot, one: ProcessBackend, two: ProcessBackend, number: int) -> float:
    """Share of sites that lead to the same definition, among those that either engine finds in the repository.

    Of those that only one engine can follow nothing is said here: dynamic code is guessed by some.
    """
    sites = sites_of(snapshot, number)
    tool = JumpTool(snapshot, one)
    first, second = resolved(one, snapshot, sites), resolved(two, snapshot, sites)
    same = both = 0
    for place in first:
        a, b = ({p.location for t in r[place].targets if (p := tool.place_of(t))} for r in (first, second))
        if a and b:
            both += 1
            same += bool(a & b)
            if not a & b:
                print(place, one.engine, sorted(a), two.engine, sorted(b))
    assert both > number / 5, "nothing was compared"
    return same / both


@pytest.mark.parametrize(
    ("symbol", "path", "index", "status", "head"),
    [
        ("total", "src/shop/cart.py", None, "ok", "src/shop/util.py::total, lines 4-10"),
        ("total", "tests/test_a.py", None, "ok", "src/shop/util.py::total"),
        ("Basket", "tests/test_a.py", None, "ok", "src/shop/cart.py::Cart"),
        ("add", "tests/test_a.py", None, "ok", "src/shop/cart.py::Cart.add"),
        ("add", "src/shop/typed.py", None, "ok", "src/shop/cart.py::Cart.add"),
        ("parse", "src/shop/cart.py", None, "ok", "src/shop/typed.py::parse, lines 8-9"),
        ("real", "tests/test_a.py", None, "ok", "src/shop/stubbed.py::real"),
        ("Cart.size", "src/shop/cart.py", None, "ok", "src/shop/cart.py::Cart.size, lines 11-13"),
        ("run", "src/shop/cart.py", None, "ambiguous", "run in src/shop/cart.py has 3 different definitions"),
        ("c.run", "src/shop/cart.py", None, "ok", "src/shop/cart.py::C.run, lines 28-29"),
        ("dumps", "src/shop/cart.py", None, "external", "dumps is defined outside the repository: json.dumps (func"),
        ("len", "src/shop/cart.py", None, "external", "len is defined outside the repository: builtins.len (func"),
        ("missing_thing", "src/shop/cart.py", None, "unresolved", "The definition of missing_thing"),
        ("foo", "src/shop/cart.py", None, "unresolved", "The definition of foo"),
    ],
)
def test_jumps(
    store: SnapshotStore, server: ProcessBackend, symbol: str, path: str, index: int | None, status: str, head: str
) -> None:
    result = jump(store.from_files(FILES), server, symbol, path, index)
    assert (result.status.value, result.content[: len(head)]) == (status, head)


def test_columns_count_characters(store: SnapshotStore, server: ProcessBackend) -> None:
    # Two UTF-16 units, four bytes: a server that counts otherwise looks at another name.
    text = "def first(): pass\ndef second(): pass\nx = '\U0001d518\U0001d518\U0001d518\U0001d518'; first(); second()\n"
    snapshot = store.from_files({"a.py": text})
    for name in ("first", "second"):
        assert jump(snapshot, server, name, "a.py").content.startswith(f"a.py::{name},")
        (use,) = [u for u in read_source(snapshot.root / "a.py").occurrences(name) if u.line == 3]
        (answer,) = resolved(server, snapshot, {"a.py": [(use.line, use.column)]}).values()
        assert [(t.path, t.line, t.name, t.kind) for t in answer.targets] == [
            ("a.py", 1 + ["first", "second"].index(name), name, "function")
        ]


def test_neither_settings_of_the_repository_nor_packages_of_the_machine(
    store: SnapshotStore, server: ProcessBackend
) -> None:
    import jedi  # this machine has it

    assert jedi
    files = {
        "a.py": "from b import f\nimport jedi\nf()\njedi.Script('x')\n",
        "b.py": "def f(): pass\n",
        "elsewhere/b.py": "def f(): return 'wrong'\n",
        "pyproject.toml": "[tool.basedpyright]\nextraPaths = ['elsewhere']\nexclude = ['b.py']\n"
        "[tool.ty.environment]\nroot = ['elsewhere']\n",
        "pyrightconfig.json": json.dumps({"extraPaths": ["elsewhere"], "ignore": ["**"]}),
        "ty.toml": "[environment]\nroot = ['elsewhere']\n",
    }
    snapshot = store.from_files(files)
    for name, text in files.items():
        (snapshot.root / name).write_text(text)
    assert jump(snapshot, server, "f", "a.py").content.startswith("b.py::f,")
    assert jump(snapshot, server, "Script", "a.py").status is Status.UNRESOLVED


@pytest.mark.parametrize("name", ["\x00", "((((", "é\ufeff\ud800", "x = 1\r\rdef f(): f", "match x:\n case"])
def test_odd_code_is_answered(store: SnapshotStore, server: ProcessBackend, name: str) -> None:
    snapshot = store.from_files({"a.py": "x = 1\n"})
    text = f"{name}\nx\n"
    answers = asyncio.run(server.resolve(snapshot, "a.py", text, [(1, 0), (2, 0), (1, 500)], timeout_s=30))
    assert len(answers) == 3 and not {a.error for a in answers} & {"timeout", "crash"}


def test_servers_agree_with_jedi(store: SnapshotStore, server: ProcessBackend, backend: ProcessBackend) -> None:
    for name in bundled_names():
        assert agreement(store.from_files(bundled_files(name)), backend, server, 120) >= 0.9


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("package", ["requests==2.32.3", "sympy==1.13.3"])
def test_servers_agree_with_jedi_on_real_projects(
    store: SnapshotStore, server: ProcessBackend, backend: ProcessBackend, tmp_path: Path, package: str
) -> None:
    fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", package]
    done = subprocess.run([*fetch, "--no-build-isolation", "-d", str(tmp_path)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no package index here: {done.stderr[-200:]}")
    (sdist,) = tmp_path.glob("*.tar.gz")
    snapshot = open_snapshot({"repository": f"sdist:{sdist}"}, store)
    assert agreement(snapshot, backend, server, 200) >= 0.9


def test_a_killed_server_costs_one_answer_and_close_leaves_nothing(store: SnapshotStore) -> None:
    snapshot = store.from_files(FILES)
    others = set(psutil.Process().children(recursive=True))
    folders = set(Path(tempfile.gettempdir()).glob("hone-lsp-*"))
    backend = make_backend("ty", 1)
    try:
        before = jump(snapshot, backend, "total", "src/shop/cart.py")
        (process,) = set(psutil.Process().children()) - others
        os.killpg(process.pid, signal.SIGKILL)
        assert jump(snapshot, backend, "total", "src/shop/cart.py").status in (Status.INTERNAL, Status.OK)
        assert jump(snapshot, backend, "total", "src/shop/cart.py") == before
    finally:
        backend.close()
    assert set(psutil.Process().children(recursive=True)) <= others
    assert set(Path(tempfile.gettempdir()).glob("hone-lsp-*")) <= folders


def test_another_repository_gets_another_server(store: SnapshotStore) -> None:
    backend = make_backend("ty", 1)
    try:
        for text in ("def f(): return 1\n", "def g(): return 2\n"):
            snapshot = store.from_files({"a.py": text, "b.py": "from a import *\nf(); g()\n"})
            found = {n: jump(snapshot, backend, n, "b.py").status for n in ("f", "g")}
            assert found == {n: Status.OK if f"def {n}" in text else Status.UNRESOLVED for n in ("f", "g")}
    finally:
        backend.close()


SERVER = """
import json, sys, time
def read():
    size = 0
    while (line := sys.stdin.buffer.readline().strip()):
        size = int(line.split(b":")[1])
    return json.loads(sys.stdin.buffer.read(size))
def say(message):
    body = json.dumps(message).encode()
    sys.stdout.buffer.write(b"Content-Length: %d\\r\\n\\r\\n" % len(body) + body)
    sys.stdout.flush()
say({"jsonrpc": "2.0", "id": read()["id"], "result": {"capabilities": {}}})
while True:
    message = read()
    column = message.get("params", {}).get("position", {}).get("character")
    if column == 99: time.sleep(1000)
    if column == 98: sys.exit(1)
    if column == 97: say({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32603, "message": "broken"}})
    elif column == 96 and message["id"] < 10:
        say({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32801, "message": "content modified"}})
    elif column is not None: say({"jsonrpc": "2.0", "id": message["id"], "result": None})
"""


def stub(code: str) -> ProcessBackend:
    command = [sys.executable, "-c", code]
    return ProcessBackend("stub", lambda question: lsp._LanguageServer(command, lsp.SERVERS["ty"], question), workers=1)


def test_stuck_and_dead_servers_are_replaced(store: SnapshotStore) -> None:
    snapshot = store.from_files({"a.py": "x = 1\n"})
    backend = stub(SERVER)

    def ask(*columns: int) -> list[str | None]:
        places = [(1, c) for c in columns]
        return [
            a.error for a in asyncio.run(backend.resolve(snapshot, "a.py", " " * 200 + "\n", places, timeout_s=1.0))
        ]

    try:
        assert ask(96, 1) == [None, None]  # asked again until it is answered
        assert ask(1, 97, 2) == [None, "ResponseError", None]
        assert ask(3, 99, 4) == [None, "timeout", "timeout"]
        assert ask(5, 98, 6) == [None, "crash", "crash"]
        assert ask(7) == [None]
        assert (backend.metrics()["timeouts"], backend.metrics()["restarts"]) == (1, 1)
    finally:
        backend.close()


def test_a_server_that_does_not_start_is_an_error_each_time(
    store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lsp, "START_S", 0.5)
    snapshot = store.from_files({"a.py": "x = 1\n"})
    for code in ("raise SystemExit(3)", "import time; time.sleep(100)"):
        backend = stub(code)
        try:
            for _ in range(2):  # the thread that serves must survive
                with pytest.raises(RuntimeError, match="did not start"):
                    asyncio.run(backend.resolve(snapshot, "a.py", "x = 1\n", [(1, 0)], timeout_s=5))
        finally:
            backend.close()


def test_a_killed_parent_leaves_no_server() -> None:
    code = (
        "import asyncio, time, tempfile\n"
        "from envs.repo_navigator.engines import make_backend\n"
        "from envs.repo_navigator.snapshot import SnapshotStore\n"
        "b = make_backend('ty', 1)\n"
        "s = SnapshotStore(tempfile.mkdtemp()).from_files({'a.py': 'x = 1\\n'})\n"
        "asyncio.run(b.resolve(s, 'a.py', 'x = 1\\n', [(1, 0)], timeout_s=30))\n"
        "print('ready', flush=True)\ntime.sleep(100)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None and parent.stdout.readline() == "ready\n"
    children = psutil.Process(parent.pid).children(recursive=True)
    assert children
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 5
    while any(c.is_running() and c.status() != psutil.STATUS_ZOMBIE for c in children):
        assert time.monotonic() < deadline, "a server outlived its parent"
        time.sleep(0.05)


def test_names_outside_are_dotted() -> None:
    for path, module in [
        ("/home/x/.cache/ty/vendored/typeshed/ab/stdlib/json/__init__.pyi", "json"),
        ("/usr/lib/python3.11/collections/abc.py", "collections.abc"),
        ("/v/lib/python3.11/site-packages/yaml/loader.py", "yaml.loader"),
        ("/n/typeshed-fallback/stubs/requests/requests/api.pyi", "requests/api".replace("/", ".")),
    ]:
        match = lsp._OUTSIDE.search(path)
        assert match is not None and match[1].replace("/", ".") == module


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lsp.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"hone-rl\[repo-navigator-lsp\]"):
        make_backend("ty")
    with pytest.raises(ValueError, match="jedi"):
        RepoNavigator(engine="pylance")
