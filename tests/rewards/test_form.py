"""Rewards for form and length."""

from __future__ import annotations

import math
import time

import pytest

from rewards.contract import RewardError
from rewards.format import json_object, pattern, tags
from rewards.length import cosine_length, repetition


@pytest.mark.parametrize(
    ("text", "inside", "anywhere"),
    [
        ("<think>a</think><answer>b</answer>", 1, 1),
        ("  <think>a</think>\n\n<answer>b</answer>\n", 1, 1),
        ("So: <think>a</think> then <answer>b</answer> done", 0, 1),
        ("<answer>b</answer><think>a</think>", 0, 0),
        ("<think>a</think><answer> </answer>", 0, 0),
        ("<think>a</think><answer>b</answer><answer>c</answer>", 0, 0),
        ("<think>a<answer>b</think></answer>", 0, 0),
        ("<think>a</think>", 0, 0),
        ("</think>a<think><answer>b</answer>", 0, 0),
        ("", 0, 0),
    ],
)
def test_tags(text: str, inside: int, anywhere: int) -> None:
    assert tags([text]) == [inside]
    assert tags([text], outside=True) == [anywhere]


def test_tags_of_other_names_and_messages() -> None:
    messages = [{"role": "assistant", "content": "<plan>x</plan>"}]
    assert tags([messages, "<plan></plan>"], names=["plan"]) == [1.0, 0.0]


def test_pattern_and_its_time_limit() -> None:
    assert pattern(["the answer is 4", "four"], regex=r"\d") == [1.0, 0.0]
    assert pattern([" 42 ", "42!"], regex=r"\d+", full=True) == [1.0, 0.0]
    began = time.monotonic()
    assert pattern(["a" * 40 + "!"], regex=r"(a|aa)+$", seconds=0.1) == [0.0]  # exponential without a limit
    assert time.monotonic() - began < 2
    with pytest.raises(RewardError, match="no regular expression"):
        pattern(["x"], regex="(")


def test_json_and_its_schema() -> None:
    schema = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
    texts = ['{"n": 1}', 'see\n```json\n{"n": 2}\n```', '{"n": "one"}', "[1", "", "[" * 100_000]
    assert json_object(texts, schema=schema) == [1, 1, 0, 0, 0, 0]
    assert json_object(["3", "nope"]) == [1, 0]
    with pytest.raises(RewardError, match="not a JSON Schema"):
        json_object(["1"], schema={"type": "nothing"})


def test_cosine_length_by_hand() -> None:
    ids = [[], [0] * 50, [0] * 100, [0] * 900]
    right = cosine_length(["4"] * 4, ids, max_tokens=100, answer=["4"] * 4)
    assert right == pytest.approx([1.0, 0.75, 0.5, 0.5])
    wrong = cosine_length(["5"] * 4, ids, max_tokens=100, answer=["4"] * 4)
    assert wrong == pytest.approx([-1.0, -0.75, -0.5, -0.5])
    quarter = cosine_length(["4"], [[0] * 25], max_tokens=100, right=(1, 0), answer=["4"])
    assert quarter == pytest.approx([0.5 * (1 + math.cos(math.pi / 4))])
    with pytest.raises(RewardError, match="is none of"):
        cosine_length(["4"], [[0]], max_tokens=10, correct="nothing", answer=["4"])


def test_repetition_by_hand() -> None:
    # "a b c a b c": abc bca cab abc, of which one of four was there before.
    assert repetition(["a b c A b c", "a b c d", "a", ""]) == pytest.approx([-0.25, 0.0, 0.0, 0.0])
    assert repetition(["a a a a"], n=1, worst=-2) == pytest.approx([-1.5])
