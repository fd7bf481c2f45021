"""Tables keep every character of their cells, whatever they are printed to."""

from __future__ import annotations

import io

from rich.console import Console
from rich.table import Table

from rl.tracking.tables import print_table

NAME = "episode/function_recall_of_the_named_in_issue_baseline"


def printed(terminal: bool) -> str:
    out = io.StringIO()
    table = Table("metric", NAME, NAME, box=None)
    table.add_row(NAME, "0.25", "0.5")
    print_table(table, Console(file=out, width=80, force_terminal=terminal, color_system=None))
    return out.getvalue()


def test_a_pipe_has_no_width() -> None:
    assert printed(terminal=False).splitlines()[1].split() == [NAME, "0.25", "0.5"]
    assert printed(terminal=False).splitlines()[0].split() == ["metric", NAME, NAME]


def test_a_narrow_terminal_folds_and_cuts_nothing() -> None:
    text = printed(terminal=True)
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
    assert sum(text.count(letter) for letter in "_") == 3 * NAME.count("_")
