"""Faults as one readable message and an exit code."""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Iterator

import typer
from rich.console import Console
from rich.markup import escape

USER, FAILED, INTERRUPTED, TERMINATED = 2, 1, 130, 143
"""Exit codes: bad input, a fault of the run, Ctrl-C, SIGTERM."""


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """Turns what goes wrong in the block into one message on stderr and a non-zero exit."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    from rl.config.errors import ConfigError

    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except (ConfigError, FileNotFoundError, FileExistsError) as error:
        console.print(f"[red]error:[/red] {escape(str(error))}")
        raise typer.Exit(USER) from error
    except KeyboardInterrupt as error:
        console.print(
            "[yellow]interrupted[/yellow]; everything has been stopped. `hone resume RUN` continues from the last "
            "checkpoint"
        )
        raise typer.Exit(INTERRUPTED) from error
    except BaseException as error:
        if type(error).__name__ == "Terminated":
            console.print("[yellow]terminated by SIGTERM[/yellow]; everything has been stopped")
            raise typer.Exit(TERMINATED) from error
        if not isinstance(error, Exception):
            raise
        cause = _leaf(error)
        if isinstance(cause, ConfigError):  # from one of several things that were done at once
            console.print(f"[red]error:[/red] {escape(str(cause))}")
            raise typer.Exit(USER) from error
        if logging.getLogger().isEnabledFor(logging.DEBUG) or not _expected(cause):
            console.print(escape("".join(traceback.format_exception(cause))))
        console.print(f"[red]error:[/red] {escape(str(cause) or type(cause).__name__)}")
        raise typer.Exit(FAILED) from error


def _leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _expected(error: BaseException) -> bool:
    """Whether the message says it all: faults that Hone itself names."""
    return type(error).__module__.split(".")[0] in ("rl", "rewards", "envs")
