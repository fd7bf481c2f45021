"""Programs in other languages than Python, where their tools are installed."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from rewards.code import code_tests, find_code, judge
from rewards.contract import RewardError
from rewards.languages import LANGUAGES, named
from rewards.sandbox import Limits, run

DOUBLE = {
    "c++": "#include <iostream>\nint main(){long n;std::cin>>n;std::cout<<2*n<<std::endl;}",
    "c": '#include <stdio.h>\nint main(){long n;scanf("%ld",&n);printf("%ld\\n",2*n);}',
    "rust": "use std::io;fn main(){let mut s=String::new();io::stdin().read_line(&mut s).unwrap();"
    'println!("{}",2*s.trim().parse::<i64>().unwrap());}',
    "java": "import java.util.*;public class Main{public static void main(String[] a){"
    "System.out.println(2*new Scanner(System.in).nextLong());}}",
    "javascript": "const s=require('fs').readFileSync(0,'utf8');console.log(2*Number(s));",
    "lua": "print(2 * io.read('n', 'l'))",
}
TESTS = [{"input": "3\n", "output": "6\n"}, {"input": "-5\n", "output": "-10"}]


def installed(name: str) -> bool:
    try:
        named(name)
    except RewardError:
        return False
    return True


@pytest.mark.parametrize("name", [n for n in LANGUAGES if n != "python"])
def test_right_wrong_and_broken_programs(name: str) -> None:
    if not installed(name):
        pytest.skip(f"{name} is not installed where the sandbox looks")
    fence = LANGUAGES[name].fences[0]
    code = DOUBLE[name]
    assert judge(f"So:\n```{fence}\n{code}\n```", TESTS, language=name) == ["passed", "passed"]
    assert judge(f"```{fence}\n{code.replace('2', '3', 1)}\n```", TESTS, language=name)[0] != "passed"
    assert judge(f"```{fence}\nthis is {{ no program\n```", TESTS, language=name) == ["error", "error"]


def test_a_compiled_program_keeps_to_its_limits() -> None:
    if not installed("c++"):
        pytest.skip("no g++")

    def verdicts(body: str) -> list[str]:
        code = f"#include <vector>\n#include <unistd.h>\n#include <cstring>\nint main(){{{body}}}"
        return list(judge(f"```cpp\n{code}\n```", TESTS[:1], Limits(seconds=1, memory_mb=64), language="c++"))

    assert verdicts("for(;;);") == ["timeout"]
    assert verdicts("std::vector<char> v(1u<<30); memset(v.data(), 1, v.size());") == ["error"]
    assert verdicts("for(;;) fork();") in (["timeout"], ["error"])


def test_a_column_names_the_language_of_each_row() -> None:
    if not installed("c"):
        pytest.skip("no gcc")
    texts = [f"```c\n{DOUBLE['c']}\n```", "```python\nprint(2 * int(input()))\n```"]
    assert asyncio.run(code_tests(texts, [TESTS, TESTS], language=["c", "py"])) == [1.0, 1.0]


def test_what_cannot_be_run_is_named() -> None:
    with pytest.raises(RewardError, match="'cobol' is none of python"):
        named("cobol")
    if installed("c"):
        with pytest.raises(RewardError, match="assertions are run in Python only"):
            judge("```c\n```", ["assert 1"], language="c")


def test_blocks_of_the_language_are_found() -> None:
    text = "```python\na\n```\n```cpp\nb\n```\n```\nc\n```"
    assert find_code(text, LANGUAGES["c++"]) == "c\n"
    assert find_code("```python\na\n```", LANGUAGES["c++"]) is None
    assert find_code("```CPP\nb\n```", LANGUAGES["c++"]) == "b\n"


def test_what_is_kept_of_a_folder_is_never_a_link() -> None:
    code = "import os\nos.symlink('/etc/hostname', 'out')\nopen('real', 'w').write('x')\nos.mkfifo('pipe')\n"
    outcome = run(["python", "main.py"], files={"main.py": code}, keep=("out", "real", "pipe", "../*", "none"))
    assert outcome.succeeded and outcome.files == {"real": b"x"}
    assert os.path.exists("/etc/hostname")


def test_what_lies_beside_the_folder_takes_no_place_among_what_is_kept(monkeypatch: Any) -> None:
    with tempfile.TemporaryDirectory() as beside:
        monkeypatch.setattr(tempfile, "tempdir", beside)
        Path(beside).chmod(0o755)
        for number in range(250):
            Path(beside, f"0{number}").touch()
        outcome = run(["python", "main.py"], files={"main.py": "open('real', 'w').write('x')"}, keep=("real", "../*"))
    assert outcome.files == {"real": b"x"}
