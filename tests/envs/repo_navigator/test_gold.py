"""Gold locations of golden patches, answers and their scores."""

from __future__ import annotations

import difflib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.repo_navigator.answer import canonical, canonical_set, files_of, last_boxed, parse_answer, score
from envs.repo_navigator.entry import choose_entry
from envs.repo_navigator.gold import apply_patch, gold_locations, overlay_of, parse_patch, reversed_patch
from envs.repo_navigator.mutate import mutations
from envs.repo_navigator.repositories import bundled_files, bundled_names
from envs.repo_navigator.snapshot import SnapshotStore
from envs.repo_navigator.source import Source

BASE = """\
import os

LIMIT = 3


class Box:
    size = 1

    @property
    def width(self):
        return self.size

    def grow(self, n):
        def inner(x):
            return x + n
        self.size = inner(self.size)
        return self


def free():
    return LIMIT
"""


def gold(before: str, after: str, path: str = "a.py", *, crlf: bool = False, reverse: bool = False) -> tuple[str, ...]:
    lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"a/{path}", f"b/{path}", n=3)
    text = f"diff --git a/{path} b/{path}\n" + "".join(lines)
    files = parse_patch(text.replace("\n", "\r\n") if crlf else text)
    shown = before
    if reverse:
        files, shown = reversed_patch(files), after
    return gold_locations(files, {path: shown}.get)


@pytest.mark.parametrize(
    ("old", "new", "want"),
    [
        ("return self.size\n", "return self.size + 1\n", ["Box.width"]),
        ("    @property\n", "    @cached_property\n", ["Box.width"]),
        ("return x + n", "return x - n", ["Box.grow.inner"]),
        ("        return self\n", "", ["Box.grow"]),
        ("        return self\n", "        self.n = n\n        return self\n", ["Box.grow"]),
        ("        return self\n", "        return self\n        # end\n", ["Box.grow"]),
        ("        return self\n", "        return self\n\n    def shrink(self):\n        pass\n", None),
        ("    return LIMIT\n", "    return LIMIT\n\n\ndef added():\n    return 1\n", None),
        ("LIMIT = 3", "LIMIT = 4", None),
        ("    size = 1", "    size = 2", None),
        ("import os\n", "import os\nimport sys\n", None),
        ("def free():\n    return LIMIT\n", "", ["free"]),
    ],
)
def test_changed_functions(old: str, new: str, want: list[str] | None) -> None:
    expected = tuple(f"a.py::{w}" for w in want) if want else ("a.py",)
    assert gold(BASE, BASE.replace(old, new)) == expected
    assert gold(BASE, BASE.replace(old, new), crlf=True) == expected


def test_a_patch_that_plants_the_bug_is_read_backwards() -> None:
    grown = BASE.replace("        return self\n", "        self.n = n\n        return self\n").replace(
        "LIMIT = 3\n", "LIMIT = 3\nX = 1\n"
    )
    assert gold(BASE, grown, reverse=True) == ("a.py::Box.grow",)
    for seed in range(30):
        rng = random.Random(seed)
        lines = BASE.splitlines(True)
        other = [x for x in lines if rng.random() > 0.2 for x in ([x] if rng.random() > 0.2 else [f"# {seed}\n", x])]
        text = "".join(difflib.unified_diff(lines, other, "a/x.py", "b/x.py", n=rng.randint(0, 3)))
        if text:
            (patch,) = parse_patch(text)
            assert apply_patch(BASE, patch) == "".join(other)
            assert apply_patch("".join(other), reversed_patch([patch])[0]) == BASE


def test_renames_binaries_tests_and_missing_newlines() -> None:
    text = """diff --git a/old.py b/new.py
similarity index 90%
rename from old.py
rename to new.py
--- a/old.py
+++ b/new.py
@@ -1,2 +1,2 @@
 def f():
-    return 1
\\ No newline at end of file
+    return 2
\\ No newline at end of file
diff --git a/logo.png b/logo.png
Binary files a/logo.png and b/logo.png differ
diff --git a/tests/test_x.py b/tests/test_x.py
--- a/tests/test_x.py
+++ b/tests/test_x.py
@@ -1 +1 @@
-x = 1
+x = 2
diff --git a/brand.py b/brand.py
new file mode 100644
--- /dev/null
+++ b/brand.py
@@ -0,0 +1,2 @@
+def g():
+    pass
"""
    files = parse_patch(text)
    before = {"old.py": "def f():\n    return 1", "tests/test_x.py": "x = 1"}
    assert gold_locations(files, before.get) == ("old.py::f",)
    assert (
        overlay_of(files, before.get)
        == {
            "new.py": "def f():\n    return 2",
            "tests/test_x.py": "x = 2",
            "brand.py": "def g():\n    pass\n",
        }
        or overlay_of(files, before.get)["brand.py"] == "def g():\n    pass"
    )
    with pytest.raises(ValueError, match="not what the patch expects"):
        apply_patch("other", files[0])


@pytest.mark.parametrize("name", bundled_names())
def test_every_planted_bug_has_its_gold_in_the_code(name: str, store: SnapshotStore) -> None:
    files = bundled_files(name)
    snapshot = store.from_files(files)
    total = 0
    for path in snapshot.files:
        for mutation in mutations(Source(files[path])):
            location = f"{path}::{mutation.definition.qualname}"
            if not path.startswith("tests/"):
                assert gold(files[path], mutation.text, path) == (location,)
                assert gold(files[path], mutation.text, path, reverse=True) == (location,)
            wanted = canonical_set([location], snapshot, qualified=True)
            assert score(wanted, wanted).dice == 1.0
            total += 1
    assert total > 15


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (r"\boxed{a.py::f}", ("a.py::f",)),
        (r"first \boxed{a.py::f} then \boxed{b.py::g}", ("b.py::g",)),
        (r"\boxed{`a.py::K.f`, 'b.py::g',}", ("a.py::K.f", "b.py::g")),
        ("\\boxed{\n a.py::f,\n b.py::f,\n a.py::f }", ("a.py::f", "b.py::f")),
        (r"\boxed{\text{a\_b.py::f}}", ("a_b.py::f",)),
        (r"\boxed{}", ()),
        (r"\boxed{a.py::f", None),
        ("no answer", None),
        (r"<think>\boxed{a.py::f}", None),
        (r"<think>\boxed{a.py::f}</think>none", None),
    ],
)
def test_answers(text: str, want: tuple[str, ...] | None) -> None:
    assert parse_answer(text) == want


@given(st.text(alphabet="\\boxed{},`: \n", max_size=60))
def test_answer_parsing_never_fails(text: str) -> None:
    found = last_boxed("\\boxed{" + text)
    assert found is None or found.count("{") == found.count("}")
    parse_answer(text)


def test_one_spelling(store: SnapshotStore) -> None:
    snapshot = store.from_files({"pkg/a.py": BASE + "\n\nclass Bin:\n    def grow(self):\n        pass\n"})

    def spell(x: str) -> str:
        return canonical(x, snapshot, qualified=True)

    assert spell("./pkg//a.py::width()") == "pkg/a.py::Box.width"
    assert spell("pkg/a.py::grow") == "pkg/a.py::grow"  # two classes have it: ambiguous, a miss
    assert spell("pkg/a.py::Box.grow.<locals>.inner") == "pkg/a.py::Box.grow.inner"
    assert spell("gone.py::x") == "gone.py::x"
    assert canonical("pkg/a.py::Box.grow", snapshot, qualified=False) == "pkg/a.py::grow"
    repeats = canonical_set(["pkg/a.py::width", "./pkg/a.py::Box.width"], snapshot, qualified=True)
    assert score(repeats, ["pkg/a.py::Box.width"]).precision == 1.0


@given(st.sets(st.integers(0, 9)), st.sets(st.integers(0, 9), min_size=1))
def test_scores_hold_together(predicted: set[int], wanted: set[int]) -> None:
    p, g = {str(x) for x in predicted}, {str(x) for x in wanted}
    s = score(p, g)
    assert all(0 <= x <= 1 for x in (s.recall, s.precision, s.dice, s.iou))
    assert s.iou == pytest.approx(s.dice / (2 - s.dice))
    if p:
        assert s.dice == score(g, p).dice
        assert s.dice == pytest.approx(2 * s.recall * s.precision / (s.recall + s.precision or 1))
    assert score(g, g).dice == 1.0


def test_scores_by_hand() -> None:
    s = score(["a", "b", "c"], ["a", "d"])
    assert (s.recall, s.precision, s.dice, s.iou) == (0.5, pytest.approx(1 / 3), 0.4, 0.25)
    many = parse_answer("\\boxed{" + ",".join(f"a.py::f{i}" for i in range(10_000)) + "}")
    assert many is not None and len(many) == 1000 and score(many, ["a.py::f1"]).dice < 0.01
    assert files_of(many) == {"a.py"}
    with pytest.raises(ValueError, match="no gold"):
        score(["a"], [])


def test_entry_files_give_nothing_away(store: SnapshotStore) -> None:
    snapshot = store.from_files(bundled_files("ledger"))
    issue = 'Traceback:\n  File "/usr/lib/ledger/book.py", line 3\n>>> from ledger import Book'

    def entry(policy: str, gold_files: set[str], text: str = issue, given: str | None = None) -> str:
        return choose_entry(policy, text, snapshot, gold_files, given).path

    assert entry("mentioned", set()) == "ledger/book.py"
    assert entry("auto", {"ledger/book.py"}) == "ledger/__init__.py"
    assert entry("auto", set(), "in tests/test_ledger.py") == "ledger/__init__.py"
    assert entry("root", {"ledger/__init__.py"}) not in {"ledger/__init__.py", "tests/test_ledger.py"}
    assert entry("oracle", {"ledger/book.py"}) == "ledger/book.py"
    assert entry("given", set(), given="./ledger/rules.py") == "ledger/rules.py"
    for policy in ("mentioned", "imports"):
        with pytest.raises(ValueError, match="finds no file"):
            entry(policy, set(), "it broke")
    with pytest.raises(ValueError, match="unknown entry policy"):
        entry("best", set())
