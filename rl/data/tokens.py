"""The policy's tokenizer and its end-of-sequence ids. Needs no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rl.config.errors import ConfigError
from rl.config.schema import ModelConfig
from rl.pretrained import resolve


def load_tokenizer(model: ModelConfig) -> Any:
    """The tokenizer of ``model.path``, with ``model.chat_template`` in place of its own template if given.

    Raises:
        ConfigError: the model or the template file cannot be read.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            resolve(model.path), revision=model.revision, trust_remote_code=model.trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.path: no tokenizer in {model.path!r}: {str(error).splitlines()[0]}") from error
    if model.chat_template is not None:
        path = Path(model.chat_template).expanduser()
        if not path.is_file():
            raise ConfigError(f"model.chat_template: no file {path}")
        tokenizer.chat_template = path.read_text(encoding="utf-8")
    return tokenizer


def eos_ids(model: ModelConfig, tokenizer: Any) -> tuple[int, ...]:
    """Every id that ends a turn: those of the generation config, the model config and the tokenizer.

    Chat models often end turns with another token than the one that ends documents; missing one of
    them makes every sample run to its budget.
    """
    found: set[int] = set()
    folder = Path(resolve(model.path))
    for name in ("generation_config.json", "config.json"):
        value = _read_json(folder, name, model).get("eos_token_id")
        found.update(value if isinstance(value, list) else [] if value is None else [value])
    if tokenizer.eos_token_id is not None:
        found.add(tokenizer.eos_token_id)
    if not found:
        raise ConfigError(f"model.path: {model.path} names no end-of-sequence token; samples would never end")
    return tuple(sorted(found))


def _read_json(folder: Path, name: str, model: ModelConfig) -> dict[str, Any]:
    file: Path | str | None = folder / name
    if not folder.is_dir():
        from transformers.utils import cached_file

        file = cached_file(model.path, name, revision=model.revision, _raise_exceptions_for_missing_entries=False)
    if file is None or not Path(file).is_file():
        return {}
    return json.loads(Path(file).read_text(encoding="utf-8"))
