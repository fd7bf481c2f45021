"""How programs of each language are built and started in the sandbox."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rewards.contract import RewardError
from rewards.sandbox import PATH, Level, Limits, Outcome, run


@dataclass(frozen=True, slots=True)
class Language:
    """Commands run in the program's folder."""

    name: str
    fences: tuple[str, ...]
    """What a fenced block of it is marked with."""
    source: str
    start: tuple[str, ...]
    build: tuple[str, ...] = ()
    products: tuple[str, ...] = ()
    """Glob patterns of what ``build`` makes and ``start`` needs."""
    reserve_mb: int = 0
    """Address space beyond ``memory_mb`` that the language's machine reserves and does not use."""


LANGUAGES: Mapping[str, Language] = {
    "python": Language("python", ("python", "py", "python3"), "main.py", ("python", "main.py")),
    "c++": Language(
        "c++",
        ("cpp", "c++", "cc", "cxx"),
        "main.cpp",
        ("./main",),
        ("g++", "-O2", "-std=c++20", "-o", "main", "main.cpp"),
        ("main",),
    ),
    "c": Language("c", ("c",), "main.c", ("./main",), ("gcc", "-O2", "-o", "main", "main.c", "-lm"), ("main",)),
    "rust": Language(
        "rust",
        ("rust", "rs"),
        "main.rs",
        ("./main",),
        ("rustc", "-O", "--edition=2021", "-o", "main", "main.rs"),
        ("main",),
    ),
    "java": Language(
        "java",
        ("java",),
        "Main.java",
        ("java", "-Xmx{memory_mb}m", "-Xss64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", ".", "Main"),
        ("javac", "-J-Xmx512m", "-J-XX:+UseSerialGC", "-J-XX:TieredStopAtLevel=1", "Main.java"),
        ("*.class",),
        reserve_mb=6000,
    ),
    "javascript": Language(
        "javascript",
        ("javascript", "js", "node"),
        "main.js",
        ("node", "--max-old-space-size={memory_mb}", "main.js"),
        reserve_mb=60_000,
    ),
    "lua": Language("lua", ("lua",), "main.lua", ("lua", "main.lua")),
}
BUILD = Limits(seconds=30.0, memory_mb=2048, file_mb=64)


@dataclass(frozen=True, slots=True)
class Program:
    """A program that is ready to run: what is in its folder, and how it starts."""

    files: Mapping[str, str | bytes]
    language: Language

    def run(self, stdin: str, limits: Limits, isolation: Level) -> Outcome:
        """One run in a fresh folder."""
        command = [part.format(memory_mb=limits.memory_mb) for part in self.language.start]
        roomy = replace(limits, memory_mb=limits.memory_mb + self.language.reserve_mb)
        return run(command, stdin=stdin, files=self.files, limits=roomy, at_least=isolation)


def named(name: str, *, elsewhere: bool = False) -> Language:
    """The language, by its name or a mark of its fenced blocks.

    Args:
        elsewhere: programs run on another machine: its tools need not be here.

    Raises:
        RewardError: it is unknown, or its tools are not where programs in the sandbox find them.
    """
    wanted = name.strip().lower()
    found = next((x for key, x in LANGUAGES.items() if wanted == key or wanted in x.fences), None)
    if found is None:
        raise RewardError(f"code: language {name!r} is none of {', '.join(LANGUAGES)}")
    lacking = [] if elsewhere else [tool for tool in (*found.build[:1], found.start[0]) if not _present(tool)]
    if lacking:
        raise RewardError(f"code: {name} needs {' and '.join(lacking)} in {PATH}, and this machine has none there")
    return found


@functools.cache
def _present(tool: str) -> bool:
    return tool.startswith(("./", "python")) or shutil.which(tool, path=PATH) is not None


def build(code: str, language: Language, isolation: Level) -> Program | None:
    """The program, compiled in the sandbox where its language asks for it; ``None`` when it does not compile."""
    if not language.build:
        return Program({language.source: code}, language)
    limits = replace(BUILD, memory_mb=BUILD.memory_mb + language.reserve_mb)
    files = {language.source: code}
    outcome = run(language.build, files=files, limits=limits, at_least=isolation, keep=language.products)
    return Program(outcome.files, language) if outcome.succeeded and outcome.files else None
