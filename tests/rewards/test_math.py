"""Mathematical answers: found in texts, compared by value, bounded in work."""

from __future__ import annotations

import csv
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards.math import find_answer, grade, math_answer

CASES = Path(__file__).resolve().parents[1] / "data" / "math_answers.tsv"


def cases() -> list[tuple[str, str, float]]:
    csv.field_size_limit(10**7)
    with CASES.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(row["gold"], row["model_answer_text"], float(row["expected"])) for row in rows]


@pytest.mark.parametrize(("gold", "text", "expected"), cases())
def test_reported_cases(gold: str, text: str, expected: float) -> None:
    began = time.monotonic()
    assert grade(text, gold) == expected
    assert time.monotonic() - began < 1.0


@pytest.mark.parametrize(
    ("gold", "answer", "expected"),
    [
        ("1/2", "0.5", 1),
        ("0.333", "1/3", 0),
        ("1000000", "1,000,000", 1),
        ("1000000", "10^6", 1),
        ("-3", "- 3", 1),
        ("x^{10}", "x^10", 1),
        ("2\\frac{3}{4}", "2.75", 1),
        ("-2\\frac{3}{4}", "-2.75", 1),
        ("2\\cdot\\frac{3}{4}", "1.5", 1),
        ("\\sqrt{12}", "2\\sqrt{3}", 1),
        ("e^{2}", "e^2", 1),
        ("e^2", "7.389", 0),
        ("\\log_2 8", "3", 1),
        ("\\sin^2 x + \\cos^2 x", "1", 1),
        ("\\sqrt{x^2}", "x", 0),
        ("|x|", "\\sqrt{x^2}", 1),
        ("(x+1)(x-1)", "x^2-1", 1),
        ("y = 2x", "2x = y", 1),
        ("x=3", "3", 1),
        ("\\{1, 2\\}", "\\{2, 1\\}", 1),
        ("(1, 2, 3)", "(1, 3, 2)", 0),
        ("x \\ge 2", "[2, \\infty)", 1),
        ("2 \\le x < 5", "[2,5)", 1),
        ("5 > x", "x < 5", 1),
        ("x \\in (0,1)", "(0,1)", 1),
        ("1 \\pm \\sqrt{2}", "1+\\sqrt2, 1-\\sqrt2", 1),
        ("12\\%", "12", 1),
        ("12", "12\\%", 1),
        ("5 km", "5 m", 0),
        ("5 kilometers", "5 km", 1),
        ("60^\\circ", "60 degrees", 1),
        ("\\text{Monday}", "monday", 1),
        ("A", "B", 0),
        ("2^{10}", "1024", 1),
        ("\\frac{0}{5}", "0", 1),
        ("1", "\\frac{1}{0}", 0),
        ("\\infty", "\\infty", 1),
        ("\\infty", "-\\infty", 0),
        ("i^2", "-1", 1),
    ],
)
def test_conventions(gold: str, answer: str, expected: float) -> None:
    assert grade(f"so \\boxed{{{answer}}}", gold) == expected


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{5} then \\boxed{6}", "6"),
        ("\\boxed{5}, \\boxed{6}", "5, 6"),
        ("\\boxed{840} \\boxed{840}", "840"),
        ("\\boxed{5} but \\boxed{", None),
        ("\\boxed{}", None),
        ("\\boxed{a \\{ b}", "a \\{ b"),
        ("The final answer is: $7$.", "$7$"),
        ("answer is 1,234.", "1,234"),
        ("two lines\nwithout an answer", None),
        ("", None),
    ],
)
def test_where_the_answer_is(text: str, answer: str | None) -> None:
    assert find_answer(text) == answer


@pytest.mark.parametrize(
    "hostile",
    [
        "\\boxed{" + "9" * 50_000 + "}",
        "\\boxed{" + "(" * 5_000 + "}",
        "\\boxed{9^{9^{9^{9}}}}",
        "\\boxed{100000!!}",
        "\\boxed{" + "\\frac{1}{" * 400 + "2" + "}" * 400 + "}",
        "\\boxed{\\binom{10^9}{5 \\cdot 10^8}}",
        "\\boxed{" + "x+" * 3000 + "x}",
        "\\boxed{" + ",".join("1" * 3 for _ in range(3000)) + "}",
        "\x00\ud800\\boxed{\ufffe}",
        "{" * 100_000,
        "\\boxed{" * 20_000,
    ],
)
def test_hostile_answers_are_wrong_and_quick(hostile: str) -> None:
    began = time.monotonic()
    assert grade(hostile, "42") == 0.0
    assert time.monotonic() - began < 1.0


numbers = st.integers(-(10**6), 10**6)
fractions = st.tuples(numbers, st.integers(1, 999)).map(lambda p: f"\\frac{{{p[0]}}}{{{p[1]}}}")
atoms = st.one_of(numbers.map(str), fractions, st.sampled_from(["x", "\\pi", "\\sqrt{5}", "2x+1", "e^{-1}"]))
answers = st.one_of(atoms, st.lists(atoms, min_size=2, max_size=4).map(", ".join), atoms.map(lambda a: f"x = {a}"))


@settings(max_examples=150, deadline=None)
@given(answers)
def test_an_answer_is_itself_however_it_is_spaced(answer: str) -> None:
    assert grade(f"\\boxed{{{answer}}}", answer) == 1.0
    assert grade(f"$\\boxed{{ {answer.replace('frac', 'dfrac')} }}$.", answer) == 1.0


@settings(max_examples=100, deadline=None)
@given(numbers, st.integers(1, 500))
def test_equal_values_are_equal_both_ways(top: int, bottom: int) -> None:
    doubled = f"\\frac{{{2 * top}}}{{{2 * bottom}}}"
    assert grade(f"\\boxed{{{doubled}}}", f"{top}/{bottom}") == 1.0
    assert grade(f"\\boxed{{{top}/{bottom}}}", doubled) == 1.0
    assert grade(f"\\boxed{{{top}/{bottom}}}", f"\\frac{{{2 * top + 1}}}{{{2 * bottom}}}") == 0.0


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200), st.text(max_size=50))
def test_nothing_raises(text: str, gold: str) -> None:
    assert grade(text, gold) in (0.0, 1.0, None)
    assert grade(f"\\boxed{{{text}}}", gold) in (0.0, 1.0, None)


def test_the_reward_takes_messages_and_leaves_rows_without_gold_alone() -> None:
    said = [[{"role": "assistant", "content": "it is \\boxed{4}"}]] * 2
    assert math_answer(said, ["4", None]) == [1.0, None]
