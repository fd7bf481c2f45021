"""Model-written programs, run in the sandbox against input/output pairs or (Python) assertions."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial as partial_of
from typing import Any, Literal

from rewards.contract import RewardError, text_of
from rewards.languages import LANGUAGES, Language, Program, build, named
from rewards.remote import RemoteProgram
from rewards.sandbox import Level, Limits, Outcome

Verdict = Literal["passed", "wrong", "error", "timeout", "output"]
_BLOCK = re.compile(r"```([^\n`]*)\n(.*?)(?:```|\Z)", re.S)
_LIKE_A_PROGRAM = re.compile(
    r"^\s*(?:def|import|from|print|class|#include|using|fn|use|public|const|let|local)\b", re.M
)


async def code_tests(
    completions: Sequence[Any],
    tests: Sequence[Any],
    *,
    partial: bool = False,
    seconds: float = 6.0,
    memory_mb: int = 512,
    isolation: Level = "limits",
    language: str | Sequence[str] = "python",
    sandbox: str | None = None,
    **columns: Any,
) -> list[float | None]:
    """1 where the completion's last code block passes all tests of its row; ``None`` where there are none.

    Args:
        tests: of each row: assertions (strings), or ``{"input": ..., "output": ...}`` for programs that
            read stdin and print.
        partial: the share of passed tests instead of all or nothing.
        isolation: refuse to run with less; see `rewards.sandbox.level`.
        language: of all rows as an option, or a column; see `rewards.languages`.
        sandbox: URL of a sandbox on another machine (`hone sandbox`, SandboxFusion), which then isolates.

    Raises:
        RewardUnavailable: that sandbox cannot be reached.
        RewardError: a language is unknown or its tools are missing, or it cannot run assertions.
    """
    languages = [language] * len(completions) if isinstance(language, str) else list(language)
    limits = Limits(seconds=seconds, memory_mb=memory_mb)

    async def one(completion: Any, rows: Any, name: str) -> float | None:
        if not rows:
            return None
        run = partial_of(judge, stop_early=not partial, language=name, sandbox=sandbox)
        verdicts = await asyncio.to_thread(run, text_of(completion), rows, limits, isolation)
        passed = sum(v == "passed" for v in verdicts)
        return passed / len(rows) if partial else float(passed == len(rows))

    rows = zip(completions, tests, languages, strict=True)
    return list(await asyncio.gather(*(one(*row) for row in rows)))


def judge(
    text: str,
    tests: Sequence[str | Mapping[str, str]],
    limits: Limits | None = None,
    isolation: Level = "limits",
    *,
    stop_early: bool = False,
    language: str = "python",
    sandbox: str | None = None,
) -> list[Verdict]:
    """The verdict of each test.

    Each runs in a process of its own, and a program sees the input of one test at a time. An early exit
    does not pass an assertion: the run must get past it and repeat a random word. Assertions share their
    process with the program, though, and one written against this very check could read the word: where
    that matters, use input and output.
    """
    kind = named(language, elsewhere=sandbox is not None)
    if kind is not LANGUAGES["python"] and any(isinstance(test, str) for test in tests):
        raise RewardError(f"code: assertions are run in Python only; give input and output for {language}")

    def make(code: str) -> Program | RemoteProgram | None:
        return build(code, kind, isolation) if sandbox is None else RemoteProgram(code, kind.name, sandbox)

    code = find_code(text, kind)
    program = None if code is None or all(isinstance(test, str) for test in tests) else make(code)
    verdicts: list[Verdict] = []
    for test in tests:
        if code is not None and isinstance(test, str):
            verdicts.append(_asserted(make, code, test, limits or Limits(), isolation))
        else:
            verdicts.append("error" if program is None else _answered(program, test, limits or Limits(), isolation))
        if stop_early and verdicts[-1] != "passed":
            break
    return verdicts


def find_code(text: str, language: Language = LANGUAGES["python"]) -> str | None:
    """The last fenced block of the language or of none, else the whole text where it looks like a program."""
    blocks = _BLOCK.findall(text.rpartition("</think>")[2])
    fitting = [body for mark, body in blocks if mark.strip().lower() in ("", *language.fences)]
    if fitting:
        return str(fitting[-1])
    if blocks:
        return None
    return text if _LIKE_A_PROGRAM.search(text) else None


def _asserted(
    make: Callable[[str], Program | RemoteProgram | None], code: str, test: str, limits: Limits, isolation: Level
) -> Verdict:
    word = os.urandom(16).hex()
    program = make(code + f"\n\n{test}\nprint('\\n' + __import__('sys').stdin.readline(), end='')\n")
    assert program is not None, "Python is not compiled"
    outcome = program.run(word + "\n", limits, isolation)
    passed = outcome.succeeded and outcome.stdout.rstrip("\n").rpartition("\n")[2] == word
    return "passed" if passed else _fault(outcome)


def _answered(program: Program | RemoteProgram, test: Any, limits: Limits, isolation: Level) -> Verdict:
    outcome = program.run(test["input"], limits, isolation)
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
