"""Model-written Python, run in the sandbox against input/output pairs or assertions."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rewards.contract import text_of
from rewards.sandbox import Level, Limits, Outcome, python

Verdict = Literal["passed", "wrong", "error", "timeout", "output"]
_BLOCK = re.compile(r"```(?:python|py|python3)?[ \t]*\n(.*?)(?:```|\Z)", re.S)


async def code_tests(
    completions: Sequence[Any],
    tests: Sequence[Any],
    *,
    partial: bool = False,
    seconds: float = 6.0,
    memory_mb: int = 512,
    isolation: Level = "limits",
    **columns: Any,
) -> list[float | None]:
    """1 where the completion's last code block passes all tests of its row; ``None`` where there are none.

    Args:
        tests: of each row: assertions (strings), or ``{"input": ..., "output": ...}`` for programs that
            read stdin and print.
        partial: the share of passed tests instead of all or nothing.
        isolation: refuse to run with less; see `rewards.sandbox.level`.
    """
    limits = Limits(seconds=seconds, memory_mb=memory_mb)

    async def one(completion: Any, rows: Any) -> float | None:
        if not rows:
            return None
        verdicts = await asyncio.to_thread(judge, text_of(completion), rows, limits, isolation, stop_early=not partial)
        passed = sum(v == "passed" for v in verdicts)
        return passed / len(rows) if partial else float(passed == len(rows))

    return list(await asyncio.gather(*(one(c, t) for c, t in zip(completions, tests, strict=True))))


def judge(
    text: str,
    tests: Sequence[str | Mapping[str, str]],
    limits: Limits | None = None,
    isolation: Level = "limits",
    *,
    stop_early: bool = False,
) -> list[Verdict]:
    """The verdict of each test.

    Each runs in a process of its own, and a program sees the input of one test at a time. An early exit
    does not pass an assertion: the run must get past it and repeat a random word. Assertions share their
    process with the program, though, and one written against this very check could read the word: where
    that matters, use input and output.
    """
    code = find_code(text)
    verdicts: list[Verdict] = []
    for test in tests:
        verdicts.append("error" if code is None else _one(code, test, limits, isolation))
        if stop_early and verdicts[-1] != "passed":
            break
    return verdicts


def find_code(text: str) -> str | None:
    """The last fenced block, else the whole text where it looks like a program."""
    blocks = _BLOCK.findall(text.rpartition("</think>")[2])
    if blocks:
        return blocks[-1]
    return text if re.search(r"^\s*(?:def|import|from|print|class)\b", text, re.M) else None


def _one(code: str, test: str | Mapping[str, str], limits: Limits | None, isolation: Level) -> Verdict:
    if isinstance(test, str):
        word = os.urandom(16).hex()
        ending = f"\n\n{test}\nprint('\\n' + __import__('sys').stdin.readline(), end='')\n"
        outcome = python(code + ending, stdin=word + "\n", limits=limits, at_least=isolation)
        passed = outcome.succeeded and outcome.stdout.rstrip("\n").rpartition("\n")[2] == word
        return "passed" if passed else _fault(outcome)
    outcome = python(code, stdin=test["input"], limits=limits, at_least=isolation)
    if outcome.succeeded:
        return "passed" if _lines(outcome.stdout) == _lines(test["output"]) else "wrong"
    return _fault(outcome)


def _fault(outcome: Outcome) -> Verdict:
    if outcome.verdict != "ended":
        return outcome.verdict
    return "wrong" if "AssertionError" in outcome.stderr else "error"


def _lines(text: str) -> list[str]:
    """Lines without trailing space; blank ones at the end do not count."""
    return [line.rstrip() for line in text.rstrip().splitlines()]
