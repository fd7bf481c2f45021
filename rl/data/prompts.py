"""From messages to token ids, and from new messages to the ids that are appended.

Ids are only ever appended to: what the policy sampled is never decoded and encoded again.
Control-token text inside messages (``<|im_end|>`` typed by a user or printed by a tool) is encoded
as plain text, so that data cannot end a turn.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rl.config.errors import ConfigError
from rl.config.schema import PromptConfig
from rl.types import Message

_PRIVATE = 0xE000
"""Start of Unicode's private use area: stands for control-token text while a template is rendered."""


class PromptBuilder:
    """Renders with the tokenizer's chat template, or as plain text where a model has none.

    Args:
        tokenizer: a Hugging Face tokenizer.
        prompt: the config section; ``chat_template_kwargs`` reach every rendering.
    """

    def __init__(self, tokenizer: Any, prompt: PromptConfig) -> None:
        self.tokenizer = tokenizer
        self._kwargs = dict(prompt.chat_template_kwargs)
        specials = sorted(
            {str(t) for t in tokenizer.all_special_tokens}
            | {t.content for t in getattr(tokenizer, "added_tokens_decoder", {}).values() if t.special},
            key=len,
            reverse=True,
        )
        self._specials = [s for s in specials if s.strip()]
        self._special_pattern = re.compile("|".join(map(re.escape, self._specials)) or r"(?!)")

    @property
    def has_template(self) -> bool:
        return bool(self.tokenizer.chat_template)

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), *, generation: bool = True
    ) -> str:
        """The text of a conversation, with the start of the assistant's turn when ``generation``."""
        if not self.has_template:
            return "\n\n".join(str(m.get("content") or "") for m in messages)
        try:
            return self.tokenizer.apply_chat_template(
                [dict(m) for m in messages],
                tools=[dict(t) for t in tools] or None,
                tokenize=False,
                add_generation_prompt=generation,
                **self._kwargs,
            )
        except Exception as error:  # templates raise what they like
            roles = [m.get("role") for m in messages]
            raise ConfigError(f"the chat template refuses a conversation with roles {roles}: {error}") from error

    def encode(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Ids of a whole prompt, the start of the assistant's turn included."""
        masked, table = self._mask(messages)
        ids = self._ids(self.render(masked, tools), table)
        if not self.has_template:
            bos = self.tokenizer.bos_token_id
            if bos is not None and getattr(self.tokenizer, "add_bos_token", True) and ids[:1] != [bos]:
                ids = [bos, *ids]
        if not ids:
            raise ConfigError("a prompt renders to no tokens at all; the first token cannot be sampled from nothing")
        return ids

    def extend(
        self,
        prefix_ids: Sequence[int],
        messages_before: Sequence[Message],
        new_messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int] | None:
        """Ids to append after the assistant's turn for new messages and the start of its next turn.

        Args:
            prefix_ids: all ids so far, ending with what the policy sampled.
            messages_before: the conversation so far; the last one is the assistant's.
            new_messages: what the environment answered.

        Returns:
            ``None`` when the template renders the earlier conversation differently now (it drops
            earlier thinking, say): appending is impossible and a new segment must start.
        """
        masked, table = self._mask([*messages_before, *new_messages])
        before = masked[: len(messages_before)]
        content = str(before[-1].get("content") or "")
        opened = self.render(before[:-1], tools)
        full = self.render(masked, tools)
        if not self.has_template:
            return self._ids("\n\n" + "\n\n".join(str(m.get("content") or "") for m in new_messages), table)
        closed = self.render(before, tools, generation=False)
        if not (full.startswith(closed) and closed.startswith(opened + content)):
            return None
        closing = closed[len(opened) + len(content) :]
        if prefix_ids:
            last = self.tokenizer.convert_ids_to_tokens(int(prefix_ids[-1]))
            if last in self._specials and closing.startswith(last):
                closing = closing[len(last) :]
        return self._ids(closing + full[len(closed) :], table)

    def count(self, text: str) -> int:
        """Tokens of a plain text."""
        return len(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _mask(self, messages: Sequence[Message]) -> tuple[list[Message], dict[str, str]]:
        """Messages with control-token text replaced by private characters, and what each stands for."""
        table: dict[str, str] = {}

        def swap(match: re.Match[str]) -> str:
            for sign, text in table.items():
                if text == match[0]:
                    return sign
            sign = chr(_PRIVATE + len(table))
            table[sign] = match[0]
            return sign

        out = []
        for message in messages:
            content = message.get("content")
            if isinstance(content, str) and self._special_pattern.search(content):
                message = {**message, "content": self._special_pattern.sub(swap, content)}
            out.append(message)
        return out, table

    def _ids(self, text: str, table: Mapping[str, str]) -> list[int]:
        if not table:
            return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        ids: list[int] = []
        for part in re.split("([" + "".join(table) + "])", text):
            if part in table:
                ids += self._plain(table[part])
            elif part:
                ids += self.tokenizer(part, add_special_tokens=False)["input_ids"]
        return ids

    def _plain(self, text: str) -> list[int]:
        ids = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        special = set(self.tokenizer.all_special_ids)
        if any(i in special for i in ids):  # tokenizers without the option: one character at a time
            ids = [i for char in text for i in self.tokenizer(char, add_special_tokens=False)["input_ids"]]
        return list(ids)
