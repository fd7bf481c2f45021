"""Rows of offline data in TRL's columns: what a model should say, or which of two answers is better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl.config.errors import ConfigError
from rl.config.schema import Config, SourceConfig
from rl.data.layouts import in_part, question_hash, rename_columns, to_task
from rl.data.sources import read_rows, source_name
from rl.types import Message

COMPLETION_COLUMNS = ("completion", "response", "output", "solution", "answer")
Example = dict[str, Any]


def read_examples(config: Config, sources: Sequence[SourceConfig], *, chat: bool) -> list[Example]:
    """The examples of all sources, in their order, those of a held-out part apart.

    Args:
        chat: the model has a chat template: keep messages; otherwise plain text.

    Raises:
        ConfigError: a source cannot be read, or a row lacks what ``config.method`` learns from.
    """
    out: list[Example] = []
    for source in sources:
        before = len(out)
        for number, row in enumerate(read_rows(source), start=1):
            where = f"{source.path} row {number}"
            prompt, answers, question = _split(row, source, config, where)
            if not in_part(source, question):
                continue
            if chat:
                made = {name: [{"role": "assistant", "content": text}] for name, text in answers.items()}
                out.append({"prompt": [dict(m) for m in prompt], **made})
            else:
                out.append({"prompt": "\n\n".join(str(m["content"]) for m in prompt), **answers})
        if len(out) == before:
            raise ConfigError(f"data source {source.path!r}: no example is left in part {source.part!r}")
    return out


def _split(
    row: Mapping[str, Any], source: SourceConfig, config: Config, where: str
) -> tuple[Sequence[Message], dict[str, str], int]:
    """The prompt, the answers by TRL's column name, and the question's hash."""
    row = rename_columns(dict(row), source, where)
    if config.method == "sft":
        answers, row = _completion(row, where)
    else:
        answers = {}
        for name in ("chosen", "rejected"):
            if name not in row:
                raise ConfigError(
                    f"{where}: no column {name!r}, which method={config.method} learns from: {sorted(row)}"
                )
            answers[name], before = _last(row[name], f"{where}: column {name!r}")
            if before and "prompt" not in row:
                row = {**row, "prompt": before}
        if answers["chosen"] == answers["rejected"]:
            raise ConfigError(f"{where}: `chosen` and `rejected` are the same text; there is nothing to prefer")
    plain = SourceConfig(path=source.path, preset=source.preset, prompt=source.prompt)
    task = to_task(row, plain, config.prompt, name=source_name(source), where=where)
    return task.messages, answers, question_hash(task)


def _completion(row: dict[str, Any], where: str) -> tuple[dict[str, str], dict[str, Any]]:
    for column in COMPLETION_COLUMNS:
        if row.get(column) is not None:
            return {"completion": _last(row[column], f"{where}: column {column!r}")[0]}, row
    if isinstance(row.get("messages"), Sequence) and not isinstance(row["messages"], str):
        text, before = _last(row["messages"], f"{where}: column 'messages'")
        if before:
            return {"completion": text}, {**row, "messages": before}
    raise ConfigError(
        f"{where}: nothing to imitate; it has {sorted(row)}. Give `messages` that end with the assistant's, or one of "
        f"{', '.join(COMPLETION_COLUMNS)}; `columns: {{completion: YOURS}}` in the source renames"
    )


def _last(value: Any, where: str) -> tuple[str, list[Any]]:
    """The assistant's text, and the messages before it."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        text, before = str(value), []
    else:
        if (
            not value
            or not isinstance(value[-1], Mapping)
            or value[-1].get("role", value[-1].get("from"))
            not in (
                "assistant",
                "gpt",
            )
        ):
            raise ConfigError(f"{where}: the last message must be the assistant's")
        text, before = str(value[-1].get("content", value[-1].get("value"))), list(value[:-1])
    if not text.strip():
        raise ConfigError(f"{where}: the answer is empty")
    return text, before
