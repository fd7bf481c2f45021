"""The reward contract and failure policies."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import numpy as np
import pytest

from rewards.contract import RewardError
from rewards.exact import close_number, exact_match, last_number
from rewards.scorer import Scorer
from rl.config.errors import ConfigError
from rl.config.schema import RewardConfig, RewardFunctionConfig
from rl.types import Bundle, Finish, Group, Segment, Task, Trajectory

TASK = Task("t", ({"role": "user", "content": "2+2"},), {"answer": "4"})


def bundle(texts: list[str], finishes: list[Finish] | None = None) -> Bundle:
    rows = []
    for i, text in enumerate(texts):
        segment = Segment(np.array([1, 2], np.int32), np.array([False, True]), np.zeros(2, np.float32))
        finish = finishes[i] if finishes else Finish.STOP
        said = (*TASK.messages, {"role": "assistant", "content": text})
        rows.append(Trajectory("r", "t#0", "solution", i, 0, [segment], said, finish, 1))
    return Bundle("t#0", TASK, 0, {"solution": Group("t#0", "solution", TASK, len(texts), rows)})


def score(b: Bundle, base: Path, outcome: str | None = None, **functions: RewardFunctionConfig) -> Scorer:
    scorer = Scorer(RewardConfig(functions=functions, outcome=outcome), base_dir=base)
    try:
        asyncio.run(scorer.score(b))
    finally:
        scorer.close()
    return scorer


def test_named_weighted_rewards_and_outcome(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def size(completion_ids, k):\n    return [k * len(c) for c in completion_ids]\n")
    b = bundle(["it is 4", "it is 5"])
    score(
        b,
        tmp_path,
        outcome="right",
        right=RewardFunctionConfig(fn="last_number"),
        size=RewardFunctionConfig(fn="mine.py:size", weight=0.1, options={"k": 3}),
    )
    assert [t.reward for t in b.trajectories] == pytest.approx([1.3, 0.3])
    assert [t.outcome for t in b.trajectories] == [1.0, 0.0]
    assert b.trajectories[0].rewards == {"right": 1.0, "size": 3.0}


def test_rewards_of_the_environment_take_weight_and_outcome_from_their_entry(tmp_path: Path) -> None:
    b = bundle(["it is 4", "it is 5", "cut"], [Finish.DONE, Finish.DONE, Finish.LENGTH])
    b.trajectories[0].rewards = {"dice": 1.0, "calls": 0.5}
    b.trajectories[1].rewards = {"dice": 0.25}
    dice = RewardFunctionConfig(fn="environment", weight=2.0)
    scorer = score(b, tmp_path, outcome="dice", dice=dice)
    assert [t.reward for t in b.trajectories] == [2.5, 0.5, 0.0]
    assert [t.outcome for t in b.trajectories] == [1.0, 0.25, 0.0]
    assert scorer.take_metrics() == {"reward/dice/not_given": 1.0}  # a name that never comes is seen


def test_a_weight_moves_in_a_line_over_its_steps(tmp_path: Path) -> None:
    functions = {"right": RewardFunctionConfig(fn="last_number", weight=1.0, weight_end=0.2, weight_steps=4)}
    scorer = Scorer(RewardConfig(functions=functions), base_dir=tmp_path)
    seen = []
    try:
        for scorer.step in (1, 2, 3, 5, 9):
            b = bundle(["4"])
            asyncio.run(scorer.score(b))
            seen.append(b.trajectories[0].reward)
            assert scorer.take_metrics()["reward/right/weight"] == seen[-1]
    finally:
        scorer.close()
    assert seen == pytest.approx([1.0, 0.8, 0.6, 0.2, 0.2])


def test_failed_episodes_are_not_scored(tmp_path: Path) -> None:
    b = bundle(["4", "4"], [Finish.ENV_ERROR, Finish.LENGTH])
    score(b, tmp_path, right=RewardFunctionConfig(fn="last_number"))
    assert [t.reward for t in b.trajectories] == [None, 1.0]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return [1.0]", "1 scores for 2"),
        ("return [float('nan')] * 2", "nan"),
        ("return 3", "int scores"),
        ("raise KeyError('oops')", "KeyError"),
    ],
)
def test_faults_of_user_code_end_the_run_and_name_it(body: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(f"def bad(completions, **columns):\n    {body}\n")
    with pytest.raises(RewardError) as caught:
        score(bundle(["a", "b"]), tmp_path, bad=RewardFunctionConfig(fn="bad.py:bad"))
    assert says in str(caught.value)
    assert "bad" in str(caught.value)


def test_a_parameter_that_is_no_column_is_named(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("def f(completions, gold):\n    return [0.0 for _ in completions]\n")
    with pytest.raises(RewardError, match="gold"):
        score(bundle(["a"]), tmp_path, f=RewardFunctionConfig(fn="m.py:f"))


def test_a_call_past_its_deadline_scores_the_policy_value_and_is_counted(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("import time\ndef slow(completions):\n    time.sleep(30)\n    return [1.0]\n")
    b = bundle(["a"])
    began = time.monotonic()
    scorer = Scorer(
        RewardConfig(
            functions={"slow": RewardFunctionConfig(fn="s.py:slow", timeout_s=0.05, on_sample_error="value:-1")}
        ),
        base_dir=tmp_path,
    )

    async def run() -> float:
        await scorer.score(b)
        return time.monotonic() - began

    assert asyncio.run(run()) < 20
    assert b.trajectories[0].reward == -1
    assert scorer.take_metrics() == {"reward/slow/timeout": 1.0}
    scorer.close()


def test_exact_match_and_last_number() -> None:
    assert exact_match([" 4 ", "four"], ["4", "Four"]) == [1.0, 0.0]
    assert exact_match(["four"], ["Four"], ignore_case=True) == [1.0]
    said = ["so 3 + 4 = 7.", "1,234", "none", "-5", "7.0", ""]
    assert last_number(said, ["#### 7", "1234", "1", "5", "7", "0"]) == [1.0, 1.0, 0.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("text", "gold", "score"),
    [
        ("The total is 72 clips, altogether.", "72", 1),  # REW-08
        ("9{,}500", "9500", 1),  # REW-09
        ("9\\,500", "9,500", 1),
        ("9{,}500", "500", 0),
        ("1,2345", "2345", 1),  # no group of three: a list
        ("it is 1,234,567.5", "1234567.5", 1),
    ],
)
def test_last_number_reads_groups_of_thousands(text: str, gold: str, score: float) -> None:
    assert last_number([text], [gold]) == [score]


def test_close_number_falls_in_a_line() -> None:
    said = ["7", "9.5", "17", "-900", "none", "1" * 300]
    assert close_number(said, ["7"] * 6) == [1.0, 0.75, 0.0, 0.0, 0.0, 0.0]
    assert close_number(["8"], ["#### 7"], within=2) == [0.5]
    assert close_number(["8"], ["unknown"]) == [0.0]
    with pytest.raises(ValueError, match="above 0"):
        close_number(["8"], ["7"], within=0)


def test_gold_answers_are_tried_before_a_run(tmp_path: Path) -> None:
    scorer = Scorer(RewardConfig(functions={"right": RewardFunctionConfig(fn="last_number")}), base_dir=tmp_path)
    asyncio.run(scorer.check_gold([TASK], "answer"))
    with pytest.raises(ConfigError, match="no column 'gold'"):
        asyncio.run(scorer.check_gold([TASK], "gold"))
    words = Task("w", TASK.messages, {"answer": "four"})
    with pytest.raises(ConfigError, match="right gives the gold answer 'four' 0"):
        asyncio.run(scorer.check_gold([words], "answer"))
    scorer.close()


def hanging(folder: Path) -> RewardFunctionConfig:
    (folder / "h.py").write_text(
        "import time\ndef f(completions):\n    out = []\n    for c in completions:\n"
        "        text = c[-1]['content']\n        time.sleep(60 if text == 'hang' else 0)\n"
        "        out.append(float(len(text)))\n    return out\n"
    )
    return RewardFunctionConfig(fn="h.py:f", timeout_s=0.5)


def test_only_the_sample_that_hangs_is_scored_by_policy(tmp_path: Path) -> None:
    b = bundle(["one", "hang", "three", *["x"] * 17])
    scorer = score(b, tmp_path, f=hanging(tmp_path))
    assert [t.reward for t in b.trajectories] == [3.0, 0.0, 5.0, *[1.0] * 17]
    assert scorer.take_metrics() == {"reward/f/timeout": 1.0}


def test_a_process_that_dies_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "d.py").write_text(
        "import os\nfrom pathlib import Path\ndef f(completions):\n"
        f"    flag = Path({str(tmp_path / 'died')!r})\n"
        "    if not flag.exists():\n        flag.touch()\n        os.kill(os.getpid(), 9)\n"
        "    return [2.0 for _ in completions]\n"
    )
    b = bundle(["a", "b"])
    scorer = score(b, tmp_path, f=RewardFunctionConfig(fn="d.py:f"))
    assert [t.reward for t in b.trajectories] == [2.0, 2.0]
    assert scorer.take_metrics() == {"reward/f/worker_lost": 1.0}


def test_memory_is_a_sample_error_where_it_is_limited(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("def f(completions):\n    return [float(len(bytearray(2 * 10**9)))]\n")
    b = bundle(["a"])
    scorer = Scorer(RewardConfig(functions={"f": RewardFunctionConfig(fn="m.py:f")}, memory_mb=1000), base_dir=tmp_path)
    asyncio.run(scorer.score(b))
    scorer.close()
    assert b.trajectories[0].reward == 0.0
    assert scorer.take_metrics() == {"reward/f/timeout": 1.0}


def test_prints_objects_and_state_do_not_disturb(tmp_path: Path) -> None:
    (tmp_path / "o.py").write_text(
        "import sys\nclass Counting:\n    def __init__(self):\n        self.calls = 0\n"
        "    def __call__(self, completions):\n        print('x' * 100_000)\n        sys.stdout.flush()\n"
        "        self.calls += 1\n        return [float(self.calls)] * len(completions)\n"
    )
    scorer = Scorer(
        RewardConfig(functions={"o": RewardFunctionConfig(fn="o.py:Counting")}, workers=1), base_dir=tmp_path
    )

    async def twice() -> list[float | None]:
        found = []
        for _ in range(2):
            b = bundle(["a"])
            await scorer.score(b)
            found.append(b.trajectories[0].reward)
        return found

    assert asyncio.run(twice()) == [1.0, 2.0]
    scorer.close()
