"""Tools of an MCP server, over its standard input and output.

Each episode starts a server of its own, so that no state passes from one to the next. A tool's
failure (`isError`) is text for the policy; a server that dies or hangs fails the call, not the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from envs.tools import Tool

PROTOCOL = "2025-06-18"


class McpError(RuntimeError):
    """The server refused a request or has ended."""


class McpServer:
    """A running server. Use `async with`, or `start` and `close`.

    Args:
        command: program and arguments.
        env: further environment variables.
        timeout_s: limit of one request.
    """

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 30.0
    ) -> None:
        self._command = list(command)
        self._env = dict(env or {})
        self._timeout_s = timeout_s
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._ended = False

    async def __aenter__(self) -> McpServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Starts the server and greets it."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, **self._env},
            start_new_session=True,
            limit=2**24,
        )
        self._reader = asyncio.create_task(self._read())
        info = {"name": "hone", "version": "0"}
        await self._request("initialize", {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": info})
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    async def tools(self) -> list[Tool]:
        """The server's tools, ready for a `Toolbox`."""
        found: list[Tool] = []
        cursor: str | None = None
        while True:
            page = await self._request("tools/list", {"cursor": cursor} if cursor else {})
            found += [self._tool(t) for t in page.get("tools", ())]
            cursor = page.get("nextCursor")
            if not cursor:
                return found

    async def close(self) -> None:
        """Kills the server and its children; idempotent."""
        process, self._process = self._process, None
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it may have been reaped, and not told to us yet
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    def _tool(self, described: Mapping[str, Any]) -> Tool:
        name = str(described["name"])

        async def call(**arguments: Any) -> str:
            result = await self._request("tools/call", {"name": name, "arguments": arguments})
            parts = [str(c.get("text", f"[{c.get('type')}]")) for c in result.get("content", ())]
            return ("Error: " if result.get("isError") else "") + "\n".join(parts)

        return Tool(name, str(described.get("description", "")), described.get("inputSchema", {"type": "object"}), call)

    async def _request(self, method: str, params: Mapping[str, Any]) -> Any:
        number = next(self._ids)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": dict(params)})
            return await asyncio.wait_for(future, self._timeout_s)
        except TimeoutError:
            raise McpError(f"{method}: no answer within {self._timeout_s:g} s") from None
        finally:
            self._waiting.pop(number, None)

    def _send(self, message: Mapping[str, Any]) -> None:
        if self._process is None or self._ended:
            raise McpError("the server has ended")
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        async for line in self._process.stdout:
            try:
                message = json.loads(line)
            except ValueError:  # servers print to standard output although they must not
                continue
            future = self._waiting.get(message.get("id", 0)) if isinstance(message, dict) else None
            if future is None or future.done():
                continue
            if "error" in message:
                future.set_exception(McpError(str(message["error"].get("message"))))
            else:
                future.set_result(message.get("result", {}))
        self._ended = True
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(McpError("the server has ended"))
