"""One MCP server that the editor handed over: connected, its tools, and calls of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from helexa_acp.errors import McpError
from helexa_acp.mcp.messages import McpTool, initialize_params, tools_of
from helexa_acp.mcp.stdio import StdioTransport

CONNECT_TIMEOUT_S = 60.0
"""A server may be downloaded by its first start."""
MAX_PAGES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class StdioServer:
    name: str
    command: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpServer:
    name: str
    url: str
    headers: Mapping[str, str]


ServerSpec = StdioServer | HttpServer


class Transport(Protocol):
    """The way to one MCP server; request and notify raise McpError."""

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]: ...

    async def notify(self, method: str) -> None: ...

    async def close(self) -> None: ...


class McpServer:
    """``connect`` before anything else; ``close`` whatever became of that."""

    def __init__(self, spec: ServerSpec, cwd: Path) -> None:
        self.spec = spec
        self.tools: tuple[McpTool, ...] = ()
        self._cwd = cwd
        self._transport: Transport | None = None

    async def connect(self) -> None:
        """Raises McpError."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._connect()
        except TimeoutError:
            raise McpError(f"it was not ready within {CONNECT_TIMEOUT_S:g} s") from None

    async def call(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The result as it came. Raises McpError."""
        if self._transport is None:
            raise McpError("it is not connected")
        params = {"name": name, "arguments": dict(arguments)}
        return await self._transport.request("tools/call", params)

    async def close(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.close()

    async def _connect(self) -> None:
        self._transport = await _open(self.spec, self._cwd)
        await self._transport.request("initialize", initialize_params())
        await self._transport.notify("notifications/initialized")
        tools: list[McpTool] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            params = {} if cursor is None else {"cursor": cursor}
            result = await self._transport.request("tools/list", params)
            tools += tools_of(result)
            cursor = result.get("nextCursor")
            if not isinstance(cursor, str):
                break
        self.tools = tuple(tools)


async def _open(spec: ServerSpec, cwd: Path) -> Transport:
    match spec:
        case StdioServer():
            return await StdioTransport.open(
                spec.command, list(spec.arguments), spec.environment, cwd
            )
        case HttpServer():
            from helexa_acp.mcp.http import HttpTransport  # its HTTP client takes long to import

            return HttpTransport(spec.url, spec.headers)
