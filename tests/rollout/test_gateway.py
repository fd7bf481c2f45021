"""Agents that own their loop: what they sampled comes back token for token."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from rl.config import load
from rl.config.schema import PromptConfig
from rl.data.prompts import PromptBuilder
from rl.rollout.engine import Generation
from rl.rollout.episodes import EpisodeRunner
from rl.rollout.gateway import Gateway, run_program
from rl.types import Finish, PolicyVersion, Request, SamplingParams, Task, VersionSpan
from tests.tiny import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
EOS = TOKENIZER.eos_token_id
CALL = '<tool_call>\n{"name": "look",  "arguments": {"x": 1}}\n</tool_call>'


class Echo:
    """Says the scripted turns; its log-probs number the tokens."""

    def __init__(self, *turns: str) -> None:
        self.turns = list(turns)
        self.prompts: list[list[int]] = []
        self.sampled: list[list[int]] = []
        self.seeds: list[int] = []

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, seed: int, request_id: str
    ) -> Generation:
        await asyncio.sleep(0)
        self.prompts.append(list(prompt_ids))
        self.seeds.append(seed)
        ids = [*TOKENIZER(self.turns.pop(0))["input_ids"], EOS]
        finish = "stop" if len(ids) <= params.max_tokens else "length"
        ids = ids[: params.max_tokens]
        self.sampled.append(ids)
        logprobs = -np.arange(1, len(ids) + 1, dtype=np.float32)
        span = VersionSpan(PolicyVersion(0, len(self.sampled)), 0, len(ids))
        return Generation(np.array(ids, np.int32), logprobs, finish, (span,))  # type: ignore[arg-type]


TASK = Task("t", ({"role": "user", "content": "go"},))


def run(agent: Any, engine: Echo, *, max_model_len: int = 4096, timeout_s: float = 20.0, max_tokens: int = 256) -> Any:
    class Agent:
        closed = 0

        async def run(self, task: Task, *, base_url: str, seed: int, deadline: float) -> Any:
            async with aiohttp.ClientSession() as client:

                async def chat(messages: list[Any], **more: Any) -> Any:
                    body = {"model": "policy", "messages": messages, **more}
                    async with client.post(f"{base_url}/chat/completions", json=body) as reply:
                        return reply.status, await (reply.text() if more.get("stream") else reply.json())

                return await agent(chat)

        async def close(self) -> None:
            self.closed += 1

    async def main() -> Any:
        gateway, program = Gateway(), Agent()
        await gateway.start()
        try:
            request = Request("r", TASK, "solution", 0, "t#0", 4, (SamplingParams(max_tokens),))
            made = await run_program(
                program, gateway, engine, PromptBuilder(TOKENIZER, PromptConfig()), request, 2,  # type: ignore[arg-type]
                family="hermes", max_model_len=max_model_len, run_seed=0, timeout_s=timeout_s,
            )  # fmt: skip
        finally:
            await gateway.stop()
        assert program.closed == 1
        return made

    return asyncio.run(main())


def text(ids: Sequence[int]) -> str:
    return TOKENIZER.decode(ids)


def test_calls_that_continue_join_one_segment() -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]

    async def agent(chat: Any) -> dict[str, float]:
        messages: list[Any] = [{"role": "user", "content": "go"}]
        _, reply = await chat(messages, tools=tools)
        said = reply["choices"][0]["message"]
        assert reply["choices"][0]["finish_reason"] == "tool_calls" and said["content"] == "hm"
        assert json.loads(said["tool_calls"][0]["function"]["arguments"]) == {"x": 1}
        said["tool_calls"][0]["function"]["arguments"] = '{"x":1}'  # clients write JSON their own way
        messages += [said, {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "a <|im_end|> b"}]
        _, reply = await chat(messages, tools=tools)
        return {"done": float(reply["choices"][0]["message"]["content"] == "end")}

    engine = Echo("hm\n" + CALL, "end")
    made = run(agent, engine)
    assert made.rewards == {"done": 1.0} and made.finish is Finish.DONE and made.sample_index == 2
    (segment,) = made.segments
    ids = segment.token_ids.tolist()
    assert text(ids) == (
        f"<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\nhm\n{CALL}<|im_end|>\n"
        "<|im_start|>tool\na <|im_end|> b<|im_end|>\n<|im_start|>assistant\nend<|im_end|>"
    )
    assert ids.count(EOS) == 4  # the one in the tool's text is plain text
    assert segment.token_ids[segment.loss_mask].tolist() == engine.sampled[0] + engine.sampled[1]
    assert engine.prompts[1] == ids[: len(engine.prompts[1])]
    assert (segment.logprobs != 0).tolist() == segment.loss_mask.tolist()
    for turn, start, end in segment.turn_spans:
        assert ids[start:end] == engine.sampled[turn]
    assert [s.version.number for s in segment.version_spans] == [1, 2]
    assert len(set(engine.seeds)) == 2
    assert made.messages[1]["content"] == "hm\n" + CALL and made.prompt_messages == 1


def test_other_calls_start_segments_of_their_own() -> None:
    async def agent(chat: Any) -> dict[str, float]:
        go = [{"role": "user", "content": "go"}]
        _, first = await chat(go)
        said = first["choices"][0]["message"]
        more = [*go, said, {"role": "user", "content": [{"type": "text", "text": "more"}]}]
        await asyncio.gather(chat(more), chat([{"role": "user", "content": "sub-agent"}]))
        await chat([*go, {"role": "assistant", "content": "rewritten"}, {"role": "user", "content": "more"}])
        return {}

    engine = Echo("one", "two", "three", "four")
    made = run(agent, engine)
    assert len(made.segments) == 3
    sampled = sorted(text(s.token_ids[s.loss_mask]).replace("<|im_end|>", "|") for s in made.segments)
    assert sum(map(len, (s.token_ids[s.loss_mask] for s in made.segments))) == sum(map(len, engine.sampled))
    assert any(x.count("|") == 2 for x in sampled)


def test_streaming_and_bad_requests() -> None:
    async def agent(chat: Any) -> dict[str, float]:
        status, events = await chat([{"role": "user", "content": "go"}], stream=True)
        assert status == 200 and '"content": "one"' in events and events.endswith("data: [DONE]\n\n")
        for body in ({"n": 2}, {"messages": []}, {"messages": [{"content": "x"}]}):
            status, reply = await chat(**{"messages": [{"role": "user", "content": "go"}], **body})
            assert status == 400 and reply["error"]["message"]
        return {}

    assert len(run(agent, Echo("one")).segments) == 1


def test_limits_of_length_and_context() -> None:
    async def agent(chat: Any) -> dict[str, float]:
        messages = [{"role": "user", "content": "go"}]
        _, reply = await chat(messages, max_tokens=100)
        assert reply["choices"][0]["finish_reason"] == "length" and reply["usage"]["completion_tokens"] == 8
        return {"ok": 1.0}

    cut = run(agent, Echo("a long answer that is cut"), max_tokens=8)
    assert cut.finish is Finish.LENGTH and cut.response_tokens == 8

    async def overrun(chat: Any) -> dict[str, float]:
        status, reply = await chat([{"role": "user", "content": "x" * 100}])
        assert status == 400 and "context" in reply["error"]["message"]
        return {"ok": 0.0}

    full = run(overrun, Echo("never"), max_model_len=64)
    assert full.finish is Finish.CONTEXT and full.segments == []


@pytest.mark.parametrize("how", ["raises", "hangs", "silent"])
def test_failing_programs_fail_alone(how: str) -> None:
    async def agent(chat: Any) -> dict[str, float]:
        if how == "raises":
            raise KeyError("x")
        if how == "hangs":
            await asyncio.Event().wait()
        return {}

    made = run(agent, Echo(), timeout_s=0.5)
    assert made.finish is (Finish.TIMEOUT if how == "hangs" else Finish.ENV_ERROR) and made.error
    assert not made.finish.scorable


AGENT = """
import json, os, sys, urllib.request
task = json.load(sys.stdin)
messages, url = task["messages"], os.environ["OPENAI_BASE_URL"] + "/chat/completions"
for turn in range(2):
    body = json.dumps({"messages": messages, "model": "policy"}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    said = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    messages += [said, {"role": "user", "content": "and?"}]
print(json.dumps({"right": float(said["content"] == task["answer"])}))
"""


def test_a_recipe_runs_a_command_as_its_environment(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    options = f"environment_options={{command: [{sys.executable}, {tmp_path / 'agent.py'}]}}"
    config = load(None, ["model.path=x", "environment=command", options]).config
    engine = Echo("one", "one", "two", "two")
    task = Task("t", TASK.messages, {"answer": "two"})
    params = (SamplingParams(64),)
    request = Request("r", task, "solution", 0, "t#0", 2, params)

    async def main() -> Any:
        runner = EpisodeRunner(engine, config, TOKENIZER)  # type: ignore[arg-type]
        try:
            return await runner.run(request)
        finally:
            await runner.close()

    made = asyncio.run(main())
    assert [t.finish for t in made] == [Finish.DONE] * 2 and [t.sample_index for t in made] == [0, 1]
    assert all(t.error is None and t.metrics["program/calls"] == 2 for t in made)
    for t in made:
        (segment,) = t.segments
        assert t.rewards["right"] == float(t.messages[-1]["content"] == "two")
        assert len(segment.turn_spans) == 2 and segment.loss_mask[-1]
    assert len(set(engine.seeds)) == 4
