"""The error of every bad input: one message that names the key and the file and says what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
    """Bad input from the user. Commands print it without a traceback and exit with 2."""


def nearest(word: str, valid: Iterable[str]) -> str:
    """A hint such as ``; did you mean `lr`?``, or the empty string."""
    close = difflib.get_close_matches(word, list(valid), n=1, cutoff=0.6)
    return f"; did you mean `{close[0]}`?" if close else ""
