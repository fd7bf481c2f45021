"""The tool on code written to be difficult: what it shows, and every way to fail."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.repo_navigator.backend import Answer, ProcessBackend
from envs.repo_navigator.jedi_backend import jedi_backend
from envs.repo_navigator.jump import JumpResult, JumpTool, Status, cut
from envs.repo_navigator.snapshot import Snapshot, SnapshotStore


def count(text: str) -> int:
    """Stands for a tokenizer: a token is four characters."""
    return (len(text) + 3) // 4


CART = '''\
import json
import requests
from shop.util import total, missing_thing
from shop.typed import parse

class Cart:
    """A cart; total is only a word here."""
    def __init__(self):
        self.items = []

    @property
    def size(self):
        return len(self.items)

    @size.setter
    def size(self, n):
        pass

    def add(self, item):
        self.items.append(item)  # total of the cart
        return total(self.items)

class A:
    def run(self): return 1
class B:
    def run(self): return 2
class C:
    async def run(self):
        return 3

def use(x):
    a = A(); b = B(); c = C()
    a.run(); b.run(); c.run()
    requests.get("x"); json.dumps(1); missing_thing(); x.foo()
    parse("1")
    return Cart().size
'''
FILES = {
    "src/shop/__init__.py": "from .cart import Cart as Basket\nfrom .util import *\ntry:\n    from .fast import go\n"
    "except ImportError:\n    from .slow import go\n",
    "src/shop/cart.py": CART,
    "src/shop/slow.py": "def go():\n    return 'slow'\n",
    "src/shop/util.py": "__all__ = ['total', 'size']\nimport functools\n\n@functools.lru_cache(\n    maxsize=3,\n)\n"
    "def total(items):\n    def inner():\n        return 1\n    return sum(items) + inner()\n\nsize = 3\n",
    "src/shop/typed.py": "from typing import TYPE_CHECKING, overload\nif TYPE_CHECKING:\n"
    "    from shop.cart import Cart\n@overload\ndef parse(x: int) -> int: ...\n"
    "@overload\ndef parse(x: str) -> str: ...\n"
    "def parse(x):\n    return x\n\n"
    "def takes(cart: 'Cart'):\n    return cart.add(1)\n",
    "src/shop/stubbed.py": "def real(a):\n    return a\n",
    "src/shop/stubbed.pyi": "def real(a: int) -> int: ...\n",
    "src/shop/big.py": "class Big:\n    '''Many methods.'''\n"
    + "".join(f"    def m{i}(self):\n        return {i}\n" for i in range(60)),
    "tests/test_a.py": "from shop import Basket, total, go\nimport requests\nfrom shop.stubbed import real\n"
    "from shop.big import Big\nBasket().add(1)\ntotal([])\ngo()\nrequests.get('a')\nreal(1)\nBig()\n",
    "src/requests_like.py": "import requests\nrequests.get('a')\n",
}


@pytest.fixture
def shop(store: SnapshotStore) -> Snapshot:
    return store.from_files(FILES)


def jump(snapshot: Snapshot, backend: ProcessBackend, *arguments: object, **options: object) -> JumpResult:
    tool = JumpTool(snapshot, backend, **options)  # type: ignore[arg-type]
    return asyncio.run(tool.jump(*arguments, count_tokens=count))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("symbol", "path", "index", "status", "head"),
    [
        ("total", "src/shop/cart.py", None, "ok", "src/shop/util.py::total, lines 4-10"),
        ("total", "tests/test_a.py", None, "ok", "src/shop/util.py::total"),
        ("shop.total", "tests/test_a.py", None, "ok", "src/shop/util.py::total"),
        ("Basket", "tests/test_a.py", None, "ok", "src/shop/cart.py::Cart"),
        ("add", "tests/test_a.py", None, "ok", "src/shop/cart.py::Cart.add"),
        ("add", "src/shop/typed.py", None, "ok", "src/shop/cart.py::Cart.add"),
        ("go", "tests/test_a.py", None, "ok", "src/shop/slow.py::go"),
        ("parse", "src/shop/cart.py", None, "ok", "src/shop/typed.py::parse, lines 8-9"),
        ("real", "tests/test_a.py", None, "ok", "src/shop/stubbed.py::real"),
        ("size", "src/shop/cart.py", None, "ok", "src/shop/cart.py::Cart.size, lines 11-13"),
        ("run", "src/shop/cart.py", None, "ambiguous", "run in src/shop/cart.py has 3 different definitions"),
        ("run", "src/shop/cart.py", 5, "ok", "src/shop/cart.py::B.run"),
        ("c.run", "src/shop/cart.py", None, "ok", "src/shop/cart.py::C.run, lines 28-29"),
        ("run", "src/shop/cart.py", 0, "bad_arguments", "Error: index 0"),
        ("run", "src/shop/cart.py", -1, "bad_arguments", "Error: index -1"),
        ("run", "src/shop/cart.py", 7, "bad_arguments", "Error: index 7 is out of range; src/shop/cart.py uses run 6"),
        ("use", "src/shop/cart.py", None, "ok", "src/shop/cart.py::use"),
        ("dumps", "src/shop/cart.py", None, "external", "dumps is defined outside the repository: json.dumps"),
        ("len", "src/shop/cart.py", None, "external", "len is defined outside"),
        ("missing_thing", "src/shop/cart.py", None, "unresolved", "The definition of missing_thing"),
        ("foo", "src/shop/cart.py", None, "unresolved", "The definition of foo"),
        ("word", "src/shop/cart.py", None, "not_in_file", "Error: word is not used"),
        (
            "totl",
            "src/shop/cart.py",
            None,
            "not_in_file",
            "Error: totl is not used in src/shop/cart.py. Did you mean",
        ),
        ("not a name", "src/shop/cart.py", None, "bad_arguments", "Error: 'not a name' is not a Python name"),
        ("total", "src/shop/crt.py", None, "bad_path", "Error: there is no file"),
        ("total", "cart.py", None, "bad_path", "Error: there is no file 'cart.py'; did you mean src/shop/cart.py?"),
    ],
)
def test_jumps(
    shop: Snapshot, backend: ProcessBackend, symbol: str, path: str, index: int | None, status: str, head: str
) -> None:
    result = jump(shop, backend, symbol, path, index)
    assert (result.status.value, result.content[: len(head)]) == (status, head)


def test_occurrences_leave_comments_and_strings_out(shop: Snapshot, backend: ProcessBackend) -> None:
    # `total` stands in an import, a comment, a docstring and one call: two uses in code.
    assert "uses total 2 times" in jump(shop, backend, "total", "src/shop/cart.py", 9).content


def test_the_installed_package_of_the_same_name_is_never_shown(store: SnapshotStore, backend: ProcessBackend) -> None:
    import requests  # this machine has the real one

    assert requests.get
    absent = jump(store.from_files(FILES), backend, "get", "src/requests_like.py")
    assert absent.status is Status.UNRESOLVED
    files = {
        **FILES,
        "src/requests/__init__.py": "from .api import get\n",
        "src/requests/api.py": "def get(url):\n    1\n",
    }
    assert jump(store.from_files(files), backend, "get", "src/requests_like.py").content.startswith(
        "src/requests/api.py"
    )


def test_bodies_are_whole(shop: Snapshot, backend: ProcessBackend) -> None:
    total = jump(shop, backend, "total", "src/shop/cart.py").content
    assert total.split("\n", 1)[1].startswith("@functools.lru_cache(\n    maxsize=3,\n)\ndef total(items):")
    assert total.endswith("return sum(items) + inner()")
    big = jump(shop, backend, "Big", "tests/test_a.py")
    assert "outline" in big.content and "Many methods." in big.content
    assert "def m59(self): ..." in big.content and "return 59" not in big.content


@pytest.mark.parametrize(
    ("name", "raw", "shown"),
    [
        ("crlf", b"def f():\r\n    return 1\r\n\r\nf()\r\n", "def f():\n    return 1"),
        ("tabs", b"class K:\n\tdef f(self):\n\t\treturn 1\nK().f()\n", "\tdef f(self):\n\t\treturn 1"),
        ("formfeed", b"x = 1\n\x0c\ndef f():\n    return 1\nf()\n", "def f():\n    return 1"),
        ("latin", b"# -*- coding: latin-1 -*-\ndef f():\n    return '\xe9'\nf()\n", "def f():\n    return '\u00e9'"),
        ("bom", b"\xef\xbb\xbfdef f():\n    return 1\nf()\n", "def f():\n    return 1"),
        ("badbytes", b"# \xff\xfe\ndef f():\n    return 1\nf()\n", "def f():\n    return 1"),
        ("cookie", b"# coding: klingon\ndef f():\n    return 1\nf()\n", "def f():\n    return 1"),
        ("oneline", b"def f(): return 1\nf()\n", "def f(): return 1"),
        ("broken", b"def f():\n    return 1\n\nf()\ndef g(:\n  x ((\n", "def f():\n    return 1"),
        ("astral", "def f():\n    return 1\ns = '\U0001f600'; f()\n".encode(), "def f():\n    return 1"),
        (
            "nested",
            b"def o():\n    async def f():\n        return 1\n    return f\n",
            "    async def f():\n        return 1",
        ),
    ],
)
def test_odd_files(
    store: SnapshotStore, backend: ProcessBackend, tmp_path: Path, name: str, raw: bytes, shown: str
) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / f"{name}.py").write_bytes(raw)
    result = jump(store.from_folder(tmp_path / "r"), backend, "f", f"{name}.py")
    assert result.status is Status.OK, result.content
    assert result.content.split("\n", 1)[1] == shown


def test_same_answer_from_another_folder_worker_and_time(tmp_path: Path, backend: ProcessBackend) -> None:
    other = jedi_backend(1, cache_dir=tmp_path / "jedi")
    try:
        asked = [("total", "src/shop/cart.py"), ("run", "src/shop/cart.py"), ("dumps", "src/shop/cart.py")]
        one, two = (SnapshotStore(tmp_path / x).from_files(FILES) for x in "ab")
        first = [jump(one, backend, *a).content for a in asked]
        assert first == [jump(two, other, *a).content for a in asked] == [jump(one, backend, *a).content for a in asked]
        assert not any(str(tmp_path) in text for text in first)
    finally:
        other.close()


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="ab \n", max_size=300), st.integers(20, 60))
def test_a_cut_text_fits_and_says_so(text: str, budget: int) -> None:
    short = cut(text, count, budget)
    assert count(short) <= budget
    if short != text:
        whole, mark = short.rsplit("[", 1)
        assert text.startswith(whole) and "more lines cut" in mark


class Scripted:
    """A resolver that answers what it is told."""

    engine = "scripted"

    def __init__(self, *answers: Answer) -> None:
        self.answers = answers

    async def resolve(
        self, snapshot: object, path: str, text: str, positions: list, *, timeout_s: float
    ) -> list[Answer]:
        return [self.answers[i % len(self.answers)] for i in range(len(positions))]

    def metrics(self) -> dict[str, float]:
        return {}

    def close(self) -> None: ...


@pytest.mark.parametrize("error", ["KeyError", "RecursionError", "ValueError", "crash"])
def test_resolver_failures_are_one_line(shop: Snapshot, error: str) -> None:
    result = jump(shop, Scripted(Answer(error=error)), "total", "src/shop/cart.py")  # type: ignore[arg-type]
    assert result.status is Status.INTERNAL and "\n" not in result.content
    result = jump(shop, Scripted(Answer(error="timeout")), "total", "src/shop/cart.py")  # type: ignore[arg-type]
    assert result.status is Status.TIMEOUT and result.status.neutral


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../x.py", "src/../../x.py", "a\0.py", "src\\a.py", "", "src", "src/shop", "x" * 300 + ".py",
     "SRC/SHOP/CART.PY", "~/x.py", "/dev/zero", "src/shop/none.py/x.py"],
)  # fmt: skip
def test_paths_stay_inside(shop: Snapshot, backend: ProcessBackend, path: str) -> None:
    result = jump(shop, backend, "total", path)
    assert result.status is Status.BAD_PATH and "\n" not in result.content


@pytest.mark.parametrize("path", ["./src/shop/cart.py", "src//shop/cart.py", "src/./shop/cart.py"])
def test_other_spellings_of_a_path(shop: Snapshot, backend: ProcessBackend, path: str) -> None:
    assert jump(shop, backend, "total", path).status is Status.OK


def test_links_fifos_and_native_code_do_not_enter_a_snapshot(tmp_path: Path, store: SnapshotStore) -> None:
    root = tmp_path / "repo"
    root.mkdir()
    secret = tmp_path / "secret.py"
    secret.write_text("KEY = 'secret'\n")
    (root / "a.py").write_text("from evil import x\n")
    (root / "evil.cpython-311-x86_64-linux-gnu.so").write_bytes(b"\x7fELF")
    (root / "out.py").symlink_to(secret)
    (root / "inner.py").symlink_to(root / "a.py")
    (root / "loop.py").symlink_to(root / "loop.py")
    (root / "folder").symlink_to(tmp_path)
    (root / "huge.py").write_text("x = 1\n" * 300_000)
    os.mkfifo(root / "pipe.py")
    started = time.monotonic()
    snapshot = store.from_folder(root)
    assert time.monotonic() - started < 2
    assert snapshot.files == ("a.py", "inner.py")
    assert not any(p.is_symlink() for p in snapshot.root.rglob("*"))
    assert not (snapshot.root / "inner.py").stat().st_mode & 0o222


def test_a_link_planted_later_is_refused(tmp_path: Path, store: SnapshotStore, backend: ProcessBackend) -> None:
    snapshot = store.from_files({"a.py": "x = 1\n"})
    (tmp_path / "b.py").write_text("x = 1\n")
    (snapshot.root / "b.py").symlink_to(tmp_path / "b.py")
    os.mkfifo(snapshot.root / "pipe.py")
    assert jump(snapshot, backend, "x", "b.py").status is Status.BAD_PATH
    assert jump(snapshot, backend, "x", "pipe.py").status is Status.BAD_PATH
