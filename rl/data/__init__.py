"""Tasks: sources, layouts, mixtures, prompts. Opens with no engine and no torch."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from rl.config.errors import ConfigError
from rl.config.schema import Config, PromptConfig, SourceConfig
from rl.data.layouts import in_part, question_hash, to_task
from rl.data.prompts import PromptBuilder
from rl.data.sources import read_rows, source_name
from rl.data.stream import Source, TaskStream
from rl.types import Task

__all__ = ["PromptBuilder", "TaskStream", "load_tasks", "open_eval", "open_training"]
log = logging.getLogger(__name__)


def open_training(config: Config, tokenizer: Any) -> TaskStream:
    """The training stream of a config.

    Raises:
        ConfigError: a source cannot be read, is empty, or holds prompts over the limit.
    """
    dropped: Counter[str] = Counter()
    sources = [
        Source(source_name(s), load_tasks(s, config.prompt, tokenizer, dropped), s.weight) for s in config.data.sources
    ]
    names = [source.name for source in sources]
    if len(set(names)) < len(names):
        raise ConfigError(f"data.sources: two sources have the same name among {names}; set `name`")
    held_out = {question_hash(t) for tasks in _held_out(config, tokenizer).values() for t in tasks}
    clean = []
    for source in sources:
        tasks = [task for task in source.tasks if question_hash(task) not in held_out]
        dropped["in evaluation"] += len(source.tasks) - len(tasks)
        if not tasks:
            raise ConfigError(f"data source {source.name!r}: every task is also an evaluation task; none is left")
        clean.append(Source(source.name, tasks, source.weight))
    seed = config.seed if config.data.seed is None else config.data.seed
    return TaskStream(clean, seed=seed, shuffle=config.data.shuffle, dropped=+dropped)


def open_eval(config: Config, tokenizer: Any) -> dict[str, list[Task]]:
    """Evaluation tasks by source name; ``eval.tasks`` is shared out over the sources."""
    found = _held_out(config, tokenizer)
    if config.eval.tasks is None or not found:
        return found
    share = max(1, config.eval.tasks // len(found))
    return {name: tasks[:share] for name, tasks in found.items()}


def load_tasks(
    source: SourceConfig, prompt: PromptConfig, tokenizer: Any, dropped: Counter[str] | None = None
) -> list[Task]:
    """All tasks of one source: one a question, of the part that the source names, within the length limit.

    Args:
        dropped: counts of what was left out, by reason, are added here.
    """
    dropped = Counter() if dropped is None else dropped
    name = source_name(source)
    builder = PromptBuilder(tokenizer, prompt)
    slack = _template_bytes(builder)
    seen: set[int] = set()
    tasks = []
    for number, row in enumerate(read_rows(source), start=1):
        where = f"{source.path} row {number}"
        task = to_task(row, source, prompt, name=name, where=where)
        question = question_hash(task)
        if question in seen:
            dropped["duplicate"] += 1
            continue
        seen.add(question)
        if not in_part(source, question):
            continue
        if _too_long(task, builder, prompt.max_tokens, slack):
            if prompt.overlong == "error":
                raise ConfigError(
                    f"{where}: the prompt has {len(builder.encode(task.messages))} tokens, more than prompt.max_tokens "
                    f"= {prompt.max_tokens}. Raise it, or set prompt.overlong=drop"
                )
            dropped["overlong"] += 1
            continue
        tasks.append(task)
    if not tasks:
        raise ConfigError(f"data source {source.path!r}: no task is left of {len(seen)} questions ({dict(dropped)})")
    if dropped:
        log.info("data source %s: left out %s", name, dict(dropped))
    return tasks


def _held_out(config: Config, tokenizer: Any) -> dict[str, list[Task]]:
    return {source_name(s): load_tasks(s, config.prompt, tokenizer) for s in config.eval.sources}


def _template_bytes(builder: PromptBuilder) -> int:
    try:
        return len(builder.render([{"role": "system", "content": ""}, {"role": "user", "content": ""}]).encode()) + 64
    except ConfigError:  # templates without a system role
        return len(builder.render([{"role": "user", "content": ""}]).encode()) + 64


def _too_long(task: Task, builder: PromptBuilder, limit: int, slack: int) -> bool:
    # A token covers at least one byte, so most prompts need not be encoded to know that they fit.
    size = sum(len(str(m.get("content")).encode("utf-8", "surrogatepass")) + slack for m in task.messages)
    return size > limit and len(builder.encode(task.messages)) > limit
