"""Reward files of other frameworks, rewards over HTTP, and judges, against real servers on loopback."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rewards.adapters import http, openrlhf, verifiers, verl
from rewards.contract import RewardError, RewardUnavailable
from rewards.judge import Judge
from rewards.scorer import Scorer
from rl.config.schema import RewardConfig, RewardFunctionConfig
from rl.types import Bundle, Finish, Group, Task, Trajectory

ASKED = [[{"role": "user", "content": "2+2?"}]] * 2
SAID = [[{"role": "assistant", "content": text}] for text in ("4", "5")]


def test_a_verl_file_runs_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "gsm.py"
    file.write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    assert data_source == 'gsm8k' and extra_info == {'index': 7}\n"
        "    right = solution_str.strip() == ground_truth\n"
        "    return {'score': 1.0, 'acc': True} if right else 0\n"
    )
    columns = {
        "data_source": ["gsm8k"] * 2,
        "reward_model": [{"style": "rule", "ground_truth": "4"}] * 2,
        "extra_info": [{"index": 7}] * 2,
    }
    assert verl(SAID, file=str(file), **columns) == [1.0, 0.0]


def test_an_openrlhf_file_runs_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "orlhf.py"
    file.write_text(
        "import torch\n"
        "def reward_func(queries, prompts, labels):\n"
        "    r = torch.tensor([float(q == p + l) for q, p, l in zip(queries, prompts, labels)])\n"
        "    return {'rewards': r, 'scores': r, 'extra_logs': {}}\n"
    )
    assert openrlhf(ASKED, SAID, file=str(file), answer=["4", "4"]) == [1.0, 0.0]


LIKE_A_RUBRIC = """
import contextlib, logging
class Rubric:  # not verifiers: what its versions have in common
    logger = logging.getLogger("mine")
    async def score_group(self, states, score_sem):
        async with score_sem:
            for state in states:
                right = state["completion"][-1]["content"] == state["answer"]
                state["reward"], state["metrics"] = right + 0.25 * len(states), {"right": right}
                state["timing"]["total_ms"] += 1
class Newer(Rubric):
    async def score_group(self, states):
        await super().score_group(states, contextlib.nullcontext())
class Swallows(Newer):
    async def score_group(self, states):
        await super().score_group(states)
        self.logger.error("Error calling reward function x: KeyError")
class Environment:
    rubric = Newer()
rubric, swallows, number = Rubric(), Swallows(), 3
def load_environment():
    return Environment()
"""


def test_a_verifiers_rubric_scores_a_group(tmp_path: Path) -> None:
    file = tmp_path / "rubrics.py"
    file.write_text(LIKE_A_RUBRIC)
    for name in ("rubric", "load_environment"):
        assert verifiers(ASKED, SAID, file=str(file), rubric=name, answer=["4", "4"]) == [1.5, 0.5]
    with pytest.raises(RewardError, match="KeyError"):
        verifiers(ASKED, SAID, file=str(file), rubric="swallows", answer=["4", "4"])
    with pytest.raises(RewardError, match="no score_group"):
        verifiers(ASKED, SAID, file=str(file), rubric="number", answer=["4", "4"])


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Starts a server whose function answers (path, body, headers) with (status, body)."""
    servers: list[ThreadingHTTPServer] = []

    def begin(answer: Callable[[str, Any, Any], tuple[int, Any]]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, said = answer(self.path, body, self.headers)
                data = said.encode() if isinstance(said, str) else json.dumps(said).encode()
                self.send_response(status)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield begin
    for server in servers:
        server.shutdown()
        server.server_close()


def test_http_scores_and_its_faults(serve: Callable[..., str]) -> None:
    def answer(path: str, body: Any, headers: Any) -> tuple[int, Any]:
        if path == "/busy":
            return 503, "later"
        if path == "/bad":
            return 422, "no such column"
        if path == "/odd":
            return 200, {"score": 1}
        said = [c[-1]["content"] for c in body["completions"]]
        golds = body["columns"]["answer"]
        return 200, {"scores": [None if s == "5" else float(s == g) for s, g in zip(said, golds, strict=True)]}

    url = serve(answer)
    assert http(ASKED, SAID, url=url, answer=["4", "4"], trajectories=[1, 2]) == [1.0, None]
    with pytest.raises(RewardUnavailable, match="503"):
        http(ASKED, SAID, url=f"{url}/busy")
    with pytest.raises(RewardError, match="no such column"):
        http(ASKED, SAID, url=f"{url}/bad")
    with pytest.raises(RewardError, match="without"):
        http(ASKED, SAID, url=f"{url}/odd")
    with pytest.raises(RewardUnavailable):
        http(ASKED, SAID, url="http://127.0.0.1:1/")


def test_a_server_that_comes_back_is_asked_again_and_one_that_does_not_is_counted(serve: Callable[..., str]) -> None:
    calls: list[str] = []

    def answer(path: str, body: Any, headers: Any) -> tuple[int, Any]:
        calls.append(path)
        return (503, "") if len(calls) == 1 or path == "/never" else (200, {"scores": [0.5]})

    url = serve(answer)

    def scored(path: str, policy: str) -> tuple[float | None, dict[str, float]]:
        config = RewardFunctionConfig(fn="http", options={"url": url + path}, on_infra_error=policy)
        scorer = Scorer(RewardConfig(functions={"far": config}, workers=1), base_dir=Path())
        task = Task("t", ({"role": "user", "content": "q"},))
        t = Trajectory("r", "b", "solution", 0, 0, [], (*task.messages, SAID[0][0]), Finish.STOP, 1)
        try:
            asyncio.run(scorer.score(Bundle("b", task, 0, {"solution": Group("b", "solution", task, 1, [t])})))
            return t.rewards["far"], scorer.take_metrics()
        finally:
            scorer.close()

    assert scored("/", "retry:2") == (0.5, {"reward/far/unavailable": 1.0})
    assert scored("/never", "retry:1") == (None, {"reward/far/unavailable": 2.0})
    with pytest.raises(RewardError, match="503"):
        scored("/never", "stop_run")


def chat(text: str) -> dict[str, Any]:
    return {"choices": [{"message": {"content": text}}], "usage": {"prompt_tokens": 10, "completion_tokens": 3}}


def test_a_judge_grades_caches_and_counts(
    serve: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def answer(path: str, body: Any, headers: Any) -> tuple[int, Any]:
        seen.append((path, body, headers["Authorization"]))
        text = body["messages"][0]["content"]
        candidate = text.split("<candidate>")[1].split("</candidate>")[0].strip()
        if candidate == "mute":
            return 200, chat("I cannot say." if body["seed"] < 1 else "Score: 5")
        if candidate == "never":
            return 200, chat("Hm.")
        return 200, chat(f"Score: 1 at first. Then **Score: {8 if candidate == '4' else 40}**")

    url = serve(answer)
    monkeypatch.setenv("KEY", "abc")
    judge = Judge()

    def scores(*texts: str) -> list[float | None]:
        said = [[{"role": "assistant", "content": t}] for t in texts]
        asked = [[{"role": "system", "content": "s"}, {"role": "user", "content": "2+2? {answer}"}]] * len(said)
        options = {"url": url, "model": "m", "key_variable": "KEY", "cache": str(tmp_path)}
        return asyncio.run(judge(asked, said, answer=["four"] * len(said), **options))

    assert scores("4", "x", "mute", "never") == [0.8, 1.0, 0.5, None]
    path, body, key = seen[0]
    assert (path, key) == ("/chat/completions", "Bearer abc")
    assert body["model"] == "m" and body["temperature"] == 0
    text = body["messages"][0]["content"]
    assert "2+2? {answer}" in text and "four" in text  # what the question says is not filled in
    assert judge.counters["unreadable"] == 1 + 3
    assert judge.counters["calls"] == 1 + 1 + 2 + 3 == len(seen)
    assert judge.counters["prompt_tokens"] == 70
    assert scores("4") == [0.8]
    assert len(seen) == 7 and judge.counters["cached"] == 1


def test_a_judge_compares_within_a_group_in_both_orders(serve: Callable[..., str]) -> None:
    def answer(path: str, body: Any, headers: Any) -> tuple[int, Any]:
        text = body["messages"][0]["content"]
        a = float(text.split("<candidate_A>")[1].split("<")[0])
        b = float(text.split("<candidate_B>")[1].split("<")[0])
        return 200, chat("Better: tie" if a == b else f"Better: {'A' if a > b else 'B'}")

    said = [[{"role": "assistant", "content": t}] for t in ("1", "2", "3", "3")]
    options = {"url": serve(answer), "model": "m", "pairwise": True, "rivals": 3}
    # All meet all: 1 loses thrice, 2 wins once of three, the 3s win twice and tie.
    assert asyncio.run(Judge()([ASKED[0]] * 4, said, **options)) == pytest.approx([0, 1 / 3, 2.5 / 3, 2.5 / 3])
    assert asyncio.run(Judge()([ASKED[0]], said[:1], **options)) == [None]


def test_a_judge_that_always_prefers_the_first_gives_all_the_same(serve: Callable[..., str]) -> None:
    url = serve(lambda path, body, headers: (200, chat("Better: A")))
    said = [[{"role": "assistant", "content": t}] for t in "abc"]
    assert asyncio.run(Judge()([ASKED[0]] * 3, said, url=url, model="m", pairwise=True)) == [0.5, 0.5, 0.5]


def test_a_judge_keeps_to_its_rate_and_says_when_it_is_refused(serve: Callable[..., str]) -> None:
    import time

    url = serve(lambda path, body, headers: (200, chat("Score: 10")) if body["model"] == "m" else (404, "no model"))
    began = time.monotonic()
    said = [[{"role": "assistant", "content": t}] for t in "abcd"]
    asyncio.run(Judge()([ASKED[0]] * 4, said, url=url, model="m", per_minute=600))
    assert time.monotonic() - began >= 0.3  # three spaces of 0.1 s
    with pytest.raises(RewardError, match="404"):
        asyncio.run(Judge()(ASKED, SAID, url=url, model="other"))
    with pytest.raises(RewardError, match="scale must rise"):
        asyncio.run(Judge()(ASKED, SAID, url=url, model="m", scale=(1, 1)))
