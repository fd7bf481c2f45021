"""Tables that lose nothing: folded on a terminal that is narrow, as wide as they are in a file or a pipe."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

WHOLE = 100_000
"""Columns, more than any table has."""


def print_table(table: Table, console: Console | None = None) -> None:
    """Prints the table whole.

    Rich cuts cells with an ellipsis to fit the width, which it takes to be 80 columns where there is no terminal; a
    name that was cut cannot be copied or searched for. The console stays as wide as the table where there is no
    terminal: Rich's `print` takes no width above the console's own.
    """
    console = console or Console()
    for column in table.columns:
        column.overflow = "fold"
    if not console.is_terminal:
        console.width = max(console.width, console.measure(table, options=console.options.update(width=WHOLE)).maximum)
    console.print(table)
