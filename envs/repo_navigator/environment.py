"""The episode: issue and entry file, jumps, a boxed answer, Dice plus the share of good calls.

`mode: paper` is arXiv 2512.20957 (bare names, success rate with weight 1, every failure counts);
`hardened` (default) asks for `Class.method`, weights the success rate by 0.2, so that one safe call
never beats a right answer, and leaves calls that could not be resolved out of the rate.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from envs.base import Action, Limits, Observation, StepResult, ToolCall
from envs.repo_navigator.answer import Scores, canonical_set, files_of, parse_answer, score
from envs.repo_navigator.backend import CachedBackend, DefinitionBackend
from envs.repo_navigator.ceiling import baseline_answers
from envs.repo_navigator.engines import ENGINES, make_backend
from envs.repo_navigator.entry import POLICIES, Entry, choose_entry
from envs.repo_navigator.jump import JumpResult, JumpTool, Place, Status, cut
from envs.repo_navigator.prompt import FORCED, JUMP_SCHEMA, ONE_CALL, REMINDER, build_prompt
from envs.repo_navigator.repositories import bundled_names, open_snapshot
from envs.repo_navigator.snapshot import Snapshot, SnapshotStore
from envs.repo_navigator.tasks import planted_rows
from envs.tools import Tool, ToolArgumentError
from rl.types import Message, Task

MODES = {"paper": 1.0, "hardened": 0.2}
"""Weight of the success rate in each mode."""
MAX_REMINDERS = 2
_RESERVE = 256
"""Tokens kept for the answer after an observation."""


class RepoNavigator:
    """One episode on one snapshot.

    Args:
        mode: `paper` or `hardened`.
        entry: entry-file policy, see `envs.repo_navigator.entry`.
        max_calls: calls; a further one ends the episode without a score.
        success_weight: weight of the share of good calls; the mode's own when not given.
        max_prompt_tokens: budget of the first message.
        max_observation_tokens: budget of one result.
        ambiguity: `list` the definitions of an ambiguous name, or show the `first`.
        no_answer: what a turn with neither call nor answer does: `remind` (twice at most) or `end`.
        tool_role: role of the results; some templates know no `tool`.
        timeout_s: limit of one call.
        engine: what finds definitions: `jedi`, `ty` or `basedpyright`.
        workers: its processes, shared by all episodes of this process.
        snapshots: folder of the snapshots; the user's cache when not given.
        cache: folder that keeps resolved definitions over runs; memory only when not given.
    """

    def __init__(
        self,
        *,
        mode: str = "hardened",
        entry: str = "auto",
        max_calls: int = 12,
        success_weight: float | None = None,
        max_prompt_tokens: int = 8192,
        max_observation_tokens: int = 2048,
        ambiguity: str = "list",
        no_answer: str = "remind",
        tool_role: str = "tool",
        timeout_s: float = 20.0,
        engine: str = "jedi",
        workers: int = 2,
        snapshots: str | None = None,
        cache: str | None = None,
        backend: DefinitionBackend | None = None,
    ) -> None:
        if mode not in MODES or entry not in POLICIES or no_answer not in ("remind", "end"):
            raise ValueError(f"mode is one of {list(MODES)}, entry one of {POLICIES}, no_answer `remind` or `end`")
        if engine not in ENGINES:
            raise ValueError(f"engine is one of {ENGINES}, not {engine!r}")
        self.mode = mode
        self.entry_policy = entry
        self.max_calls = max_calls
        self.success_weight = MODES[mode] if success_weight is None else success_weight
        self.max_prompt_tokens = max_prompt_tokens
        self.max_observation_tokens = max_observation_tokens
        self.ambiguity = ambiguity
        self.no_answer = no_answer
        self.tool_role = tool_role
        self.timeout_s = timeout_s
        self._store = SnapshotStore(snapshots)
        self._backend = backend or shared_backend(engine, workers, cache)
        self._jump_tool: JumpTool | None = None
        self._schema = Tool("jump", "", JUMP_SCHEMA["function"]["parameters"], lambda: None)
        self._gold: frozenset[str] = frozenset()
        self._gold_files: frozenset[str] = frozenset()
        self.entry: Entry | None = None
        self.seen: list[Place] = []
        """Definitions that calls have shown, in order."""
        self._statuses: Counter[Status] = Counter()
        self._reminders = 0

    @staticmethod
    def example_tasks() -> list[Task]:
        """Planted bugs in the bundled repositories."""
        rows = [r for name in bundled_names() for r in planted_rows(f"bundled:{name}", SnapshotStore(), count=4)]
        return [Task(r["task_id"], ({"role": "user", "content": r["prompt"]},), r) for r in rows]

    async def reset(self, task: Task, *, seed: int, limits: Limits) -> Observation:
        gold = task.columns.get("gold")
        if not gold:
            raise ValueError(f"task {task.task_id}: column `gold` is empty; drop the task when building the set")
        snapshot = await asyncio.to_thread(open_snapshot, task.columns, self._store)
        issue = str(task.columns.get("issue") or task.messages[-1]["content"])
        self._gold = canonical_set(gold, snapshot, qualified=self.mode == "hardened")
        self._gold_files = frozenset(task.columns.get("gold_files") or files_of(gold))
        self.entry = await asyncio.to_thread(
            choose_entry, self.entry_policy, issue, snapshot, self._gold_files, task.columns.get("entry")
        )
        self._jump_tool = JumpTool(
            snapshot,
            self._backend,
            max_tokens=self.max_observation_tokens,
            timeout_s=self.timeout_s,
            ambiguity=self.ambiguity,
        )
        text = await asyncio.to_thread(
            build_prompt,
            issue,
            self.entry.path,
            snapshot,
            max_calls=self.max_calls,
            qualified=self.mode == "hardened",
            count_tokens=limits.count_tokens,
            max_tokens=min(self.max_prompt_tokens, limits.tokens_left * 3 // 4),  # the rest is for the episode
        )
        system = tuple(m for m in task.messages if m.get("role") == "system")
        info = {f"entry_{self.entry.policy}": 1.0}
        return Observation((*system, {"role": "user", "content": text}), (JUMP_SCHEMA,), info)

    async def step(self, action: Action, *, limits: Limits) -> StepResult:
        if action.finish == "length":  # cut off: neither a call nor an answer, whatever it looks like
            return self._end(None, truncated=True)
        if action.tool_calls:
            if self.calls >= self.max_calls:
                return self._end(None, truncated=True)
            return await self._calls(action.tool_calls, limits)
        answer = parse_answer(action.text)
        if answer is not None:
            return self._end(answer)
        if self.no_answer == "end" or self._reminders >= MAX_REMINDERS:
            return self._end(())
        self._reminders += 1
        return StepResult(({"role": "user", "content": REMINDER},), info={"reminders": 1.0})

    async def baselines(self, task: Task, *, seed: int, limits: Limits) -> Mapping[str, Mapping[str, float]]:
        """Metrics of answers that need no model, by baseline: what a policy has to beat."""
        await self.reset(task, seed=seed, limits=limits)
        assert self.entry is not None, "reset chose it"
        issue = str(task.columns.get("issue") or task.messages[-1]["content"])
        gold = task.columns["gold"]
        answers = await baseline_answers(self.snapshot, self.entry.path, issue, gold, self._backend, seed=seed)
        out = {}
        for name, answer in answers.items():
            predicted = canonical_set(answer, self.snapshot, qualified=self.mode == "hardened")
            function, file = score(predicted, self._gold), score(files_of(predicted), self._gold_files)
            out[name] = function.named("function") | file.named("file")
        return out

    async def close(self) -> None:
        """The snapshot and the resolvers are shared and stay."""
        self._jump_tool = None

    @property
    def calls(self) -> int:
        """Calls made so far, failed ones included."""
        return self._statuses.total()

    @property
    def snapshot(self) -> Snapshot:
        assert self._jump_tool is not None, "reset comes first"
        return self._jump_tool.snapshot

    def success_rate(self) -> float:
        """Share of calls that succeeded; 0 without calls, or not calling would be as good as calling well."""
        counted = sum(n for s, n in self._statuses.items() if self.mode == "paper" or not s.neutral)
        return sum(n for s, n in self._statuses.items() if s.success) / counted if counted else 0.0

    async def _calls(self, calls: tuple[ToolCall, ...], limits: Limits) -> StepResult:
        """Runs the first readable call; every other one gets a reply too."""
        chosen = next((i for i, c in enumerate(calls) if c.error is None), 0)
        messages: list[Message] = []
        info: dict[str, float] = {}
        for i, call in enumerate(calls[:8]):
            if i != chosen:
                messages.append(self._message(call, ONE_CALL))
                continue
            budget = max(limits.tokens_left - _RESERVE - 64 * len(calls), 16)
            result = await self._jump(call, budget, limits)
            self._statuses[result.status] += 1
            self.seen += result.places
            info = {
                "calls": 1.0,
                f"call_{result.status.value}": 1.0,
                "observation_tokens": float(limits.count_tokens(result.content)),
            }
            note = f"\n\n{FORCED}" if self.calls >= self.max_calls else ""
            messages.append(self._message(call, result.content + note))
        return StepResult(tuple(messages), info=info)

    async def _jump(self, call: ToolCall, budget: int, limits: Limits) -> JumpResult:
        assert self._jump_tool is not None, "reset comes before step"
        if call.error is not None:
            return JumpResult(Status.PARSE_ERROR, cut(f"Error: {call.error}", limits.count_tokens, budget))
        if call.name != "jump":
            return JumpResult(Status.BAD_ARGUMENTS, f"Error: there is no tool {call.name[:60]!r}; use jump.")
        try:
            arguments = self._schema.check(call.arguments)
        except ToolArgumentError as error:
            return JumpResult(Status.BAD_ARGUMENTS, f"Error: {error}.")
        return await self._jump_tool.jump(
            **arguments, count_tokens=limits.count_tokens, max_tokens=budget, timeout_s=limits.seconds_left
        )

    def _message(self, call: ToolCall, content: str) -> Message:
        message: Message = {"role": self.tool_role, "content": content}
        if self.tool_role == "tool":
            message |= {"name": call.name or "jump", "tool_call_id": call.call_id}
        return message

    def _end(self, answer: tuple[str, ...] | None, *, truncated: bool = False) -> StepResult:
        """Scores an answer; `None` is an overrun and scores 0."""
        predicted: frozenset[str] = frozenset()
        if answer is not None:
            predicted = canonical_set(answer, self.snapshot, qualified=self.mode == "hardened")
        function, file = score(predicted, self._gold), score(files_of(predicted), self._gold_files)
        rate = self.success_rate() if answer is not None else 0.0
        return StepResult(
            rewards={"dice": function.dice, "calls": self.success_weight * rate},
            terminated=not truncated,
            truncated=truncated,
            info=self._final_info(function, file, answer, rate),
        )

    def _final_info(
        self, function: Scores, file: Scores, answer: tuple[str, ...] | None, rate: float
    ) -> dict[str, float]:
        seen = canonical_set((p.location for p in self.seen), self.snapshot, qualified=self.mode == "hardened")
        return {
            **function.named("function"),
            **file.named("file"),
            "success_rate": rate,
            "answered": float(answer is not None and len(answer) > 0),
            "predicted": float(len(answer or ())),
            "gold_seen": len(self._gold & seen) / len(self._gold),
        }


_backends: dict[tuple[str, int, str | None], CachedBackend] = {}
_backends_lock = threading.Lock()


def shared_backend(engine: str, workers: int, cache: str | None = None) -> CachedBackend:
    """The resolvers of this process: hundreds of episodes share a few worker processes and one cache.

    They end with the process, or with `close_backends`.
    """
    with _backends_lock:
        key = (engine, workers, cache)
        if key not in _backends:
            folder = Path(cache).expanduser() if cache else None
            _backends[key] = CachedBackend(make_backend(engine, workers), folder)
        return _backends[key]


def close_backends() -> None:
    """Ends the shared worker processes; later episodes start new ones."""
    with _backends_lock:
        for backend in _backends.values():
            backend.close()
        _backends.clear()
