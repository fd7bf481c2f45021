"""The words of an episode: task, rules, entry file within its token budget."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from envs.repo_navigator.jump import cut
from envs.repo_navigator.snapshot import Snapshot
from envs.repo_navigator.source import Source, read_source

CountTokens = Callable[[str], int]

RULES = """\
Find the functions that must be changed to resolve the issue below. You cannot list or search files: \
your one tool is jump, which shows the definition of a name that is used in a file you know.

- symbol is a bare name as it stands in the code (for `parser.read` give `read`), file_path is the file that \
uses it, not the one that defines it.
- index (from 1) picks one use when a name means different things in one file.
- Make one call a turn, then wait for its result. You have {max_calls} calls. A call looks like this:
{example}
- When you know, answer without a call, with all locations in one box: \\boxed{{path/to/file.py::{form}}}, \
separated by commas when there are several.
"""
FORCED = "You have used all your calls. Answer now in \\boxed{}; a further call ends the episode without a score."
REMINDER = "There was neither a call nor an answer. Call jump once, or answer in \\boxed{path/to/file.py::name}."
ONE_CALL = "Error: only one call a turn; this one was not run."

JUMP_SCHEMA: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "jump",
        "description": "Show the definition of a symbol that is used in a file.",
        "parameters": {
            "type": "object",
            "properties": {
                "symbol": {"type": "string", "description": "Bare name as used in the file."},
                "file_path": {"type": "string", "description": "Repository path of the file that uses it."},
                "index": {
                    "type": "integer",
                    "description": "Which use of the name in the file, from 1. Only when it is ambiguous.",
                    "nullable": True,
                },
            },
            "required": ["symbol", "file_path"],
        },
    },
}


def build_prompt(
    issue: str,
    entry: str,
    snapshot: Snapshot,
    *,
    max_calls: int,
    qualified: bool,
    count_tokens: CountTokens,
    max_tokens: int,
) -> str:
    """The user message: at most a third of the budget for the issue, what is left for the entry file.

    Raises:
        ValueError: the budget does not even hold the rules.
    """
    call = json.dumps({"name": "jump", "arguments": {"symbol": "read", "file_path": entry}})
    form = "Class.method" if qualified else "function"
    head = RULES.format(max_calls=max_calls, example=call, form=form)
    left = max_tokens - count_tokens(head) - 64
    if left < 64:
        raise ValueError(f"a prompt of {max_tokens} tokens has no room for the issue; raise max_prompt_tokens")
    issue = cut(issue.strip(), count_tokens, max(left // 3, 32))
    left -= count_tokens(issue)
    code = entry_text(read_source(snapshot.root / entry), issue, count_tokens, left)
    return f"{head}\nIssue:\n{issue}\n\nEntry file {entry}:\n{code}"


def entry_text(source: Source, issue: str, count_tokens: CountTokens, budget: int) -> str:
    """The file; when it is too long, its outline and in full the definitions that the issue names."""
    text = source.text.strip("\n")
    if count_tokens(text) <= budget:
        return text
    parts = [source.outline(None) or text]
    for definition in source.definitions:
        if definition.kind == "function" and definition.qualname.rpartition(".")[2] in issue:
            more = f"\n# lines {definition.start}-{definition.end}\n{source.code(definition.start, definition.end)}"
            if count_tokens("".join(parts) + more) <= budget:
                parts.append(more)
    return cut("".join(parts), count_tokens, budget)
