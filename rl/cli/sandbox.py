"""`hone sandbox`: the sandbox of this machine as a server for runs on others."""

from __future__ import annotations

import os
from typing import Annotated

import typer
from rich.console import Console

from rl.cli.report import reported


def sandbox(
    host: Annotated[str, typer.Option(help="Address to listen on; other machines reach 0.0.0.0.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 8080,
    programs: Annotated[int, typer.Option(min=1, help="Programs at once; the cores, when not given.")] = os.cpu_count()
    or 1,
    isolation: Annotated[str, typer.Option(help="Least isolation: limits, user or namespaces.")] = "namespaces",
) -> None:
    """Run programs for other machines: `reward.functions.NAME.options.sandbox=http://HOST:PORT` of `fn: code`.

    Requests must carry the token in HONE_SANDBOX_TOKEN, where that is set on both sides; without one only
    127.0.0.1 is served. Ctrl-C ends it.

    Example: hone sandbox --port 8080
    """
    with reported():
        from rewards.remote import TOKEN_VARIABLE
        from rewards.sandbox import LEVELS, SandboxError, level
        from rewards.sandbox_server import SandboxServer
        from rl.config.errors import ConfigError

        token = os.environ.get(TOKEN_VARIABLE)
        if isolation not in LEVELS:
            raise ConfigError(f"--isolation {isolation!r} is none of {', '.join(LEVELS)}")
        if token is None and host not in ("127.0.0.1", "localhost", "::1"):
            raise ConfigError(f"set {TOKEN_VARIABLE}: without a token anyone who reaches {host} runs programs")
        try:
            found = level()
        except SandboxError as error:
            raise ConfigError(str(error)) from error
        if LEVELS.index(found) < LEVELS.index(isolation):  # type: ignore[arg-type]
            raise ConfigError(f"this machine isolates by {found!r} only; `--isolation {found}` accepts that")
        try:
            server = SandboxServer(host, port, programs=programs, isolation=isolation, token=token)  # type: ignore[arg-type]
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from error
        console = Console()
        console.print(f"sandbox on http://{host}:{server.server_port}, {programs} programs at once, isolation {found}")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            console.print("stopped")
        finally:
            server.server_close()
