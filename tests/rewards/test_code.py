"""Programs against tests, honest and dishonest ones."""

from __future__ import annotations

import asyncio

import pytest

from rewards.code import code_tests, find_code, judge
from rewards.sandbox import Limits

ADD = "def add(a, b):\n    return a + b"
TESTS = ["assert add(1, 2) == 3", "assert add(-1, 1) == 0"]
ECHO = [{"input": "3\n", "output": "6\n"}, {"input": "5\n", "output": "10"}]


def fenced(code: str) -> str:
    return f"Here it is:\n```python\n{code}\n```\nDone."


def test_right_and_wrong_programs() -> None:
    assert judge(fenced(ADD), TESTS) == ["passed", "passed"]
    assert judge(fenced(ADD.replace("+", "-")), TESTS) == ["wrong", "wrong"]
    assert judge(fenced("def add(a, b): return nothing"), TESTS) == ["error", "error"]
    assert judge(fenced("print(2 * int(input()))  "), ECHO) == ["passed", "passed"]
    assert judge(fenced("print(6)"), ECHO) == ["passed", "wrong"]
    assert judge("no code here", TESTS) == ["error", "error"]


def test_endless_programs_time_out() -> None:
    assert judge(fenced("while True: pass"), TESTS[:1], Limits(seconds=1)) == ["timeout"]


@pytest.mark.parametrize(
    "trick",
    [
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "print('passed'); raise SystemExit",
        "class Any:\n    __eq__ = lambda *a: False\ndef add(a, b): return Any()",
        "import builtins; builtins.AssertionError = Exception",
    ],
)
def test_tricks_do_not_pass(trick: str) -> None:
    assert judge(fenced(trick), TESTS[:1]) != ["passed"]


def test_the_reward_gives_all_or_a_share() -> None:
    half = fenced("def add(a, b):\n    return 3")
    rows = [[{"role": "assistant", "content": text}] for text in (fenced(ADD), half, half)]
    assert asyncio.run(code_tests(rows, [TESTS, TESTS, None])) == [1.0, 0.0, None]
    assert asyncio.run(code_tests(rows, [TESTS, TESTS, []], partial=True)) == [1.0, 0.5, None]


def test_the_last_block_counts() -> None:
    assert find_code(fenced("first") + fenced("second")) == "second\n"
    assert find_code("```python\nunclosed = 1") == "unclosed = 1"
