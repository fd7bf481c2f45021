"""Column layouts: from a row of verl, TRL, OpenRLHF or plain data to a `Task`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rl.config.errors import ConfigError, nearest
from rl.config.schema import PromptConfig, SourceConfig
from rl.types import Message, Task

Row = dict[str, Any]
PROMPT_COLUMNS = ("prompt", "messages", "question", "problem", "instruction", "input", "query", "context_messages")


def detect(row: Mapping[str, Any]) -> str:
    """The layout of a row: ``verl``, ``openrlhf``, ``messages``, ``trl`` or ``plain``."""
    if "data_source" in row and "reward_model" in row:
        return "verl"
    if "context_messages" in row or ("input" in row and "label" in row):
        return "openrlhf"
    if "messages" in row and "prompt" not in row:
        return "messages"
    return "trl" if isinstance(row.get("prompt"), list) else "plain"


def to_task(row: Row, source: SourceConfig, prompt: PromptConfig, *, name: str, where: str) -> Task:
    """A task from a row.

    Args:
        name: the source's name in metrics.
        where: words for errors, such as ``tasks.jsonl row 3``.

    Raises:
        ConfigError: a column is missing or has the wrong type.
    """
    row = rename_columns(row, source, where)
    layout = detect(row) if source.preset == "auto" else source.preset
    column = source.prompt or _prompt_column(row, layout, where)
    if column not in row:
        raise ConfigError(f"{where}: no column {column!r}{nearest(column, row)} It has {sorted(row)}")
    columns = dict(row)
    if layout == "verl":
        truth = (row.get("reward_model") or {}).get("ground_truth")
        columns.setdefault("ground_truth", truth)
        columns.setdefault("answer", truth)
    elif layout == "openrlhf" and "label" in row:
        columns.setdefault("answer", row["label"])
    messages = _messages(row[column], columns, prompt, f"{where}: column {column!r}")
    return Task(
        task_id=_digest([messages, {k: v for k, v in row.items() if k != column}]),
        messages=messages,
        columns=columns,
        source=name,
        rewards=tuple(source.rewards) if source.rewards is not None else None,
    )


def question_hash(task: Task) -> int:
    """64-bit hash of the prompt alone: equal questions are equal whatever their other columns say."""
    text = "\x1f".join(f"{m['role']}\x1e{m.get('content')}".strip() for m in task.messages)
    return int.from_bytes(hashlib.blake2b(" ".join(text.split()).encode(), digest_size=8).digest(), "big")


def in_part(source: SourceConfig, question: int) -> bool:
    """Whether a question, by its hash, belongs to the part of the source that the config names."""
    return source.holdout is None or (question / 2**64 < source.holdout) == (source.part == "holdout")


def rename_columns(row: Row, source: SourceConfig, where: str) -> Row:
    """The row with the columns that ``source.columns`` adds; a dotted name reaches into nested values."""
    out = dict(row)
    for new, old in source.columns.items():
        value: Any = row
        for part in old.split("."):
            if not isinstance(value, Mapping) or part not in value:
                raise ConfigError(f"{where}: columns.{new}: no column {old!r}{nearest(part, row)}")
            value = value[part]
        out[new] = value
    return out


def _prompt_column(row: Row, layout: str, where: str) -> str:
    if layout == "messages":
        return "messages"
    for column in PROMPT_COLUMNS:
        if column in row:
            return column
    raise ConfigError(
        f"{where}: no prompt column; it has {sorted(row)}. Name it with `prompt: COLUMN` in the source "
        f"(known names: {', '.join(PROMPT_COLUMNS)})"
    )


def _messages(value: Any, columns: Mapping[str, Any], prompt: PromptConfig, where: str) -> tuple[Message, ...]:
    if isinstance(value, str):
        text = value
        if prompt.template is not None:
            text = _fill(prompt.template, {**columns, "prompt": value}, where)
        messages: list[Message] = [{"role": "user", "content": text}]
    elif isinstance(value, Sequence) and value and all(isinstance(m, Mapping) for m in value):
        messages = [_message(m, where) for m in value]
        if prompt.template is not None:
            last = messages[-1]
            last["content"] = _fill(prompt.template, {**columns, "prompt": last["content"]}, where)
        if messages[-1]["role"] == "assistant":
            raise ConfigError(f"{where}: the last message is the assistant's; a prompt ends with the user")
    else:
        raise ConfigError(f"{where}: a prompt is text or a list of messages, not {type(value).__name__} {value!r:.60}")
    if prompt.system is not None:
        messages = [{"role": "system", "content": prompt.system}] + [m for m in messages if m["role"] != "system"]
    if not any(str(m["content"]).strip() for m in messages):
        raise ConfigError(f"{where}: the prompt is empty")
    return tuple(messages)


def _message(message: Mapping[str, Any], where: str) -> Message:
    role = message.get("role", message.get("from"))
    content = message.get("content", message.get("value"))
    role = {"human": "user", "gpt": "assistant"}.get(str(role), role)
    if not isinstance(role, str) or not isinstance(content, str):
        raise ConfigError(f"{where}: a message needs text in `role` and `content`, not {dict(message)!r:.100}")
    return {"role": role, "content": content}


def _fill(template: str, columns: Mapping[str, Any], where: str) -> str:
    """Only ``{name}`` of a column is replaced: other braces, as in JSON or LaTeX, stay."""
    import re

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name not in columns:
            raise ConfigError(
                f"{where}: prompt.template names {{{name}}}{nearest(name, columns)} Columns: {sorted(columns)}"
            )
        return str(columns[name])

    return re.sub(r"\{([A-Za-z_]\w*)\}", value, template)


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
