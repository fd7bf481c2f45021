"""The layer around environments: registry, adapters, contract check, traces, MCP, programs."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import psutil
import pytest
from typer.testing import CliRunner

from envs.adapters.gymnasium import GymnasiumText
from envs.adapters.openenv import OpenEnv
from envs.adapters.trl import TrlEnvironment
from envs.base import Action, Environment, Observation, StepResult, ToolCall
from envs.checking import check_environment
from envs.checking_program import ScriptedEndpoint, check_program
from envs.episode import play, play_all, read_traces, replay, scripted
from envs.mcp import McpError, McpServer
from envs.program import CommandProgram, Program, read_rewards
from envs.registry import ENVIRONMENTS
from envs.single_turn import SingleTurn
from envs.tools import Toolbox
from rl.cli.main import app
from rl.types import Task

TASK = Task("t", ({"role": "user", "content": "Guess."},), {"secret": 3})


class Guess:
    """Guess a number in three turns."""

    def __init__(self) -> None:
        self.turns = 0
        self.secret = 0

    async def reset(self, task, *, seed, limits):
        self.secret = int(task.columns.get("secret", seed % 5))
        return Observation(task.messages)

    async def step(self, action, *, limits):
        self.turns += 1
        if str(self.secret) in action.text:
            return StepResult(rewards={"right": 1.0}, terminated=True)
        return StepResult(({"role": "user", "content": f"No ({self.turns})."},), truncated=self.turns >= 3)

    async def close(self):
        pass


def check(make: Any) -> str:
    return "; ".join(f"{p.where}: {p.what}" for p in asyncio.run(check_environment(make, TASK, episodes=6)))


@pytest.mark.parametrize("make", [Guess, SingleTurn])
def test_good_environments_pass(make: Any) -> None:
    assert check(make) == ""
    assert isinstance(make(), Environment)


def broken(**methods: Any) -> Any:
    return type("Broken", (Guess,), methods)


async def _nan(self, action, *, limits):
    return StepResult(rewards={"r": float("nan")}, terminated=True)


async def _silent(self, action, *, limits):
    return StepResult()


async def _assistant(self, action, *, limits):
    return StepResult(({"role": "assistant", "content": "I am the policy"},))


async def _blocks(self, action, *, limits):
    time.sleep(0.4)
    return StepResult(terminated=True)


async def _raises(self, action, *, limits):
    raise KeyError(action.text)


async def _endless(self, action, *, limits):
    return StepResult(({"role": "user", "content": "x" * 50_000},))


async def _random(self, action, *, limits):
    return StepResult(({"role": "user", "content": str(next(COUNTER))},))


async def _shared(self, task, *, seed, limits):
    return Observation(({"role": "user", "content": str(next(COUNTER))},))


async def _list(self, task, *, seed, limits):
    return Observation([{"role": "user", "content": None}])  # type: ignore[arg-type]


COUNTER = itertools.count()


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        ({"step": _nan}, "finite"),
        ({"step": _silent}, "without a message"),
        ({"step": _assistant}, "role 'assistant'"),
        ({"step": _blocks}, "blocked"),
        ({"step": _raises}, "KeyError"),
        ({"step": _endless}, "were left"),
        ({"step": _random}, "replay"),
        ({"reset": _shared}, "state shared"),
        ({"reset": _list}, "not a tuple"),
        ({"close": lambda self: None}, "async def"),
    ],
)
def test_broken_promises_are_found(methods: dict[str, Any], words: str) -> None:
    assert words in check(broken(**methods))


def test_traces_replay_byte_for_byte(tmp_path: Path) -> None:
    trace = asyncio.run(play(Guess(), TASK, scripted(["1", "2", "it is 3"])))
    assert (trace.finish, trace.rewards) == ("done", {"right": 1.0})
    assert [m["content"] for m in trace.messages] == ["Guess.", "1", "No (1).", "2", "No (2).", "it is 3"]
    trace.append_to(tmp_path / "t.jsonl")
    (read,) = read_traces(tmp_path / "t.jsonl")
    assert read == trace and asyncio.run(replay(Guess(), TASK, read)) == []
    read.results[0]["messages"][0]["content"] = "No (1). "
    assert asyncio.run(replay(Guess(), TASK, read)) == ["turn 0: messages differs"]


def test_one_stuck_or_broken_episode_does_not_hold_up_the_rest() -> None:
    closed = []

    class Odd(Guess):
        async def reset(self, task, *, seed, limits):
            if task.task_id == "1":
                await asyncio.Event().wait()
            if task.task_id == "2":
                raise RuntimeError("no disk")
            return await super().reset(task, seed=seed, limits=limits)

        async def close(self):
            closed.append(self)

    tasks = [Task(str(i), TASK.messages, TASK.columns) for i in range(8)]
    traces = asyncio.run(play_all(Odd, tasks, lambda: scripted(["3"]), timeout_s=0.5))
    assert [t.finish for t in traces] == ["done", "timeout", "env_error"] + ["done"] * 5
    assert "no disk" in (traces[2].error or "") and len(closed) == 8


def test_context_and_length_end_an_episode_after_done() -> None:
    long = "a " * 500
    assert asyncio.run(play(Guess(), TASK, scripted([long, "3"]), context=200)).finish == "context"
    exact = asyncio.run(play(Guess(), TASK, scripted(["3 " + long]), context=200))
    assert (exact.finish, exact.rewards) == ("done", {"right": 1.0})  # the answer fills it, and still counts
    assert asyncio.run(play(Guess(), TASK, scripted(["1"], finish="length"))).finish == "length"


class GymGuess:
    def reset(self, *, seed=None, options=None):
        return "guess", {"seed": seed}

    def step(self, action):
        right = action == "3"
        return ("more", float(right), right, False, {"tries": 1})

    def close(self):
        self.closed = True


def test_gymnasium_text_environments() -> None:
    made: list[GymGuess] = []

    def make() -> GymGuess:
        made.append(GymGuess())
        return made[-1]

    trace = asyncio.run(play(GymnasiumText(make), TASK, scripted(["1", "<think>4?</think> 3 "])))
    assert trace.rewards == {"environment": 1.0} and trace.info == {"tries": 2.0} and made[0].closed
    assert [m["content"] for m in trace.prompt] == ["Guess.", "guess"]
    assert check(lambda: GymnasiumText(GymGuess)) == ""


class TrlCounter:
    """As TRL's documentation shows them: reset, tools, get_reward."""

    def reset(self, **row):
        self.count, self.wanted = 0, row.get("secret", 0)
        return " Count!"

    def increase(self, by: int) -> str:
        """Add to the counter.

        Args:
            by: How much.
        """
        self.count += by
        return f"now {self.count}"

    def get_reward(self) -> float:
        return float(self.count == self.wanted)


def test_trl_environments() -> None:
    turns = [f'<tool_call>{{"name": "increase", "arguments": {{"by": {n}}}}}</tool_call>' for n in (1, 2)]
    trace = asyncio.run(play(TrlEnvironment(TrlCounter), TASK, scripted([*turns, "done"])))
    assert trace.prompt[0]["content"] == "Guess. Count!" and trace.rewards == {"environment": 1.0}
    assert [t["function"]["name"] for t in trace.tools] == ["increase"]
    assert trace.messages[2] == {"role": "tool", "name": "increase", "tool_call_id": "call_0", "content": "now 1"}
    assert check(lambda: TrlEnvironment(TrlCounter)) == ""


class OpenClient:
    live = 0

    def __init__(self, base_url: str) -> None:
        OpenClient.live += 1
        self.base_url = base_url

    async def reset(self, **options):
        return SimpleNamespace(observation=SimpleNamespace(text="hi"), reward=None, done=False)

    async def step(self, action):
        reward = float("nan") if action == "cheat" else 0.5
        return SimpleNamespace(observation=SimpleNamespace(text=action + "!"), reward=reward, done=action == "end")

    def close(self):
        OpenClient.live -= 1


def test_openenv_clients() -> None:
    def make() -> OpenEnv:
        return OpenEnv(OpenClient, str, options={"base_url": "x"}, field="text")

    trace = asyncio.run(play(make(), TASK, scripted(["a", "end"])))
    assert trace.rewards == {"environment": 1.0} and trace.messages[3]["content"] == "a!"
    cheat = asyncio.run(play(make(), TASK, scripted(["cheat"])))
    assert cheat.finish == "env_error" and OpenClient.live == 0


SERVER = """
import json, sys, time, os
print("banner that does not belong here", flush=True)
for line in sys.stdin:
    m = json.loads(line)
    if "id" not in m: continue
    p = m.get("params", {})
    if m["method"] == "initialize": r = {"capabilities": {}}
    elif m["method"] == "tools/list" and not p.get("cursor"):
        r = {"tools": [{"name": "echo", "description": "Say it again.", "inputSchema": {"type": "object",
             "properties": {"text": {"type": "string"}}, "required": ["text"]}}], "nextCursor": "2"}
    elif m["method"] == "tools/list": r = {"tools": [{"name": "bad", "inputSchema": {"type": "object"}}]}
    elif p["name"] == "bad": r = {"content": [{"type": "text", "text": "broken"}], "isError": True}
    elif p["arguments"]["text"] == "hang": time.sleep(100)
    elif p["arguments"]["text"] == "die": os._exit(1)
    else: r = {"content": [{"type": "text", "text": p["arguments"]["text"]}]}
    print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": r}), flush=True)
"""


def test_mcp_servers_are_tools() -> None:
    async def main() -> list[str]:
        async with McpServer([sys.executable, "-c", SERVER], timeout_s=2) as server:
            box = Toolbox(await server.tools())
            said = [(await box.call(ToolCall("echo", {"text": t}))).content for t in ("one", "two")]
            said.append((await box.call(ToolCall("bad"))).content)
            said.append((await box.call(ToolCall("echo", {}))).content)
            said.append((await box.call(ToolCall("echo", {"text": "die"}))).content)
            said.append((await box.call(ToolCall("echo", {"text": "again"}))).content)
        async with McpServer([sys.executable, "-c", SERVER], timeout_s=0.3) as server:
            with pytest.raises(McpError, match="no answer"):
                await server.tools()
                await server._request("tools/call", {"name": "echo", "arguments": {"text": "hang"}})
        return said

    before = set(psutil.Process().children(recursive=True))
    said = asyncio.run(main())
    assert said[:2] == ["one", "two"] and said[2] == "Error: broken" and "needs the argument" in said[3]
    assert "ended" in said[4] and "ended" in said[5]
    assert set(psutil.Process().children(recursive=True)) <= before


AGENT = """
import json, os, sys
task = json.load(sys.stdin)
assert "HONE_MARK" not in os.environ
print("working"); print(json.dumps({"solved": float(task["secret"] == 3), "seed": float(os.environ["HONE_SEED"])}))
"""


def test_programs_run_in_a_clean_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HONE_MARK", "1")
    program = CommandProgram([sys.executable, "-c", AGENT])
    assert isinstance(program, Program)
    rewards = asyncio.run(program.run(TASK, base_url="http://x/v1", seed=7, deadline=0))
    assert rewards == {"solved": 1.0, "seed": 7.0}
    with pytest.raises(RuntimeError, match="ended with 1"):
        asyncio.run(CommandProgram([sys.executable, "-c", "1/0"]).run(TASK, base_url="", seed=0, deadline=0))

    async def killed() -> None:
        stuck = CommandProgram([sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '100'])"])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stuck.run(TASK, base_url="", seed=0, deadline=0), 0.5)
        await stuck.close()

    before = set(psutil.Process().children(recursive=True))
    asyncio.run(killed())
    assert set(psutil.Process().children(recursive=True)) <= before


CALLING_AGENT = """
import json, os, sys, urllib.request
task = json.load(sys.stdin)
body = json.dumps({"messages": task["messages"], "model": "policy"}).encode()
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
said = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
print(json.dumps({"length": len(said)}))
"""


def test_good_programs_pass_the_check(tmp_path: Path) -> None:
    agent, tasks = tmp_path / "agent.py", tmp_path / "tasks.jsonl"
    agent.write_text(CALLING_AGENT)
    tasks.write_text('{"prompt": "go"}\n')
    command = [f"command=[{sys.executable},{agent}]", "--tasks", str(tasks)]
    done = CliRunner().invoke(app, ["check", "env", "command", *command])
    assert done.exit_code == 0 and "keeps the contract" in done.output, done.output
    alone = CliRunner().invoke(app, ["play", "command", *command])
    assert alone.exit_code == 2 and "--endpoint" in alone.output


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return {}", "made no call"),
        ("await self.ask(base_url); return {'r': float('nan')}", "finite"),
        ("await self.ask(base_url); return 1.0", "float, not a mapping"),
        ("await self.ask(base_url); time.sleep(0.4); return {}", "event loop: was blocked"),
        ("await self.ask(base_url); raise KeyError('x')", "run: raised KeyError"),
        ("while await self.ask(base_url, '/refuse'): pass", "no end within 2 s"),
        (
            "while not await self.ask(base_url): await asyncio.sleep(0.01)\n        return {}",
            "when the endpoint refuses",
        ),
    ],
)
def test_broken_programs_are_found(body: str, words: str) -> None:
    names: dict[str, Any] = {"asyncio": asyncio, "time": time}
    exec(f"async def run(self, task, *, base_url, seed, deadline):\n        {body}", names)

    class Broken:
        run = names["run"]

        async def ask(self, url: str, how: str = "") -> bool:
            """Whether the endpoint answered."""
            async with (
                aiohttp.ClientSession() as client,
                client.post(f"{url}/chat/completions", json={"messages": []}) as reply,
            ):
                return reply.status == 200 or bool(how)

        async def close(self) -> None:
            pass

    problems = asyncio.run(check_program(Broken, TASK, seconds=2))
    assert words in "; ".join(f"{p.where}: {p.what}" for p in problems)


def test_programs_that_leave_children_are_found() -> None:
    class Leaves:
        async def run(self, task, *, base_url, seed, deadline):
            agent = await asyncio.create_subprocess_exec(
                sys.executable, "-c", CALLING_AGENT, stdin=-1, stdout=-1, env={"OPENAI_BASE_URL": base_url}
            )
            started.append(agent.pid)
            out, _ = await agent.communicate(b'{"messages": []}')
            return read_rewards(out.decode())

        async def close(self):
            pass

    started: list[int] = []
    try:
        (problem,) = asyncio.run(check_program(Leaves, TASK))
    finally:
        for pid in started:
            if psutil.pid_exists(pid):
                psutil.Process(pid).kill()
    assert problem.what == "left 1 processes running"


def test_programs_are_played_with_an_endpoint(tmp_path: Path) -> None:
    agent = tmp_path / "agent.py"
    agent.write_text(CALLING_AGENT)

    async def main() -> Any:
        async with ScriptedEndpoint("four") as endpoint:
            command = ["play", "command", f"command=[{sys.executable},{agent}]", "--endpoint", endpoint.url("e")]
            return await asyncio.to_thread(CliRunner().invoke, app, command)

    played = asyncio.run(main())
    assert played.exit_code == 0 and "4.0000" in played.output and "1 done" in played.output


@pytest.mark.parametrize("line", ["", "done", "[1]", '{"r": NaN}', '{"r": "1"}', '{"r": true}', '{"r": Infinity}'])
def test_rewards_of_programs_are_checked(line: str) -> None:
    with pytest.raises(ValueError, match="reward"):
        read_rewards("text\n" + line)


def test_command_line(tmp_path: Path) -> None:
    user = tmp_path / "mine.py"
    user.write_text(
        "from envs.base import Observation, StepResult\n"
        "class Mine:\n"
        "    def __init__(self, size: int = 1): self.size = size\n"
        "    async def reset(self, task, *, seed, limits): return Observation(task.messages)\n"
        "    async def step(self, action, *, limits):\n"
        "        return StepResult(rewards={'r': 1.0 * self.size}, terminated=True)\n"
        "    async def close(self): pass\n"
    )
    run = CliRunner().invoke
    good = run(app, ["check", "env", f"{user}:Mine", "size=3"])
    assert good.exit_code == 0 and "keeps the contract" in good.output
    bad = run(app, ["check", "env", f"{user}:Mine", "width=3"])
    assert bad.exit_code == 2 and "width" in bad.output
    unknown = run(app, ["check", "env", "singel_turn"])
    assert unknown.exit_code == 2 and "single_turn" in unknown.output
    trace = tmp_path / "t.jsonl"
    played = run(app, ["play", f"{user}:Mine", "size=2", "--trace", str(trace)], input="hello\n\n")
    assert played.exit_code == 0 and read_traces(trace)[0].rewards == {"r": 2.0}
    assert "same" in run(app, ["play", f"{user}:Mine", "size=2", "--replay", str(trace)]).output
    assert run(app, ["play", f"{user}:Mine", "size=4", "--replay", str(trace)]).exit_code == 1


def test_registry_names_load() -> None:
    assert {"single_turn", "repo_navigator", "gymnasium", "trl", "openenv"} <= set(ENVIRONMENTS)
    assert asyncio.run(SingleTurn().step(Action("x"), limits=None)).terminated  # type: ignore[arg-type]
