"""The MCP servers of one session: their connections, tools and calls."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acp.schema import HttpMcpServer, McpServerStdio

from helexa_acp import __version__
from helexa_acp.errors import ConfigError, McpError, ToolError
from helexa_acp.history import Image, Part, Text, clean
from helexa_acp.modes import Action
from helexa_acp.tools.base import Arguments, Outcome, Preview, Tool, ToolContext
from helexa_acp.wire import MAX_NAME_LENGTH, ToolSpec, wire_name

if TYPE_CHECKING:
    from helexa_acp.mcp_transports import HttpTransport, StdioTransport

REVISION = "2025-06-18"
"""https://modelcontextprotocol.io/specification/2025-06-18"""
CONNECT_TIMEOUT_S = 60.0
"""A server may be downloaded by its first start."""
MAX_PAGES = 50
ServerSpec = McpServerStdio | HttpMcpServer


def checked_specs(servers: Sequence[Any]) -> list[ServerSpec]:
    """The editor's list of servers. Raises ConfigError for a kind that is not announced."""
    for server in servers:
        if not isinstance(server, ServerSpec):
            raise ConfigError(
                f"MCP server {server.name}: {server.type} is not supported, stdio and http are"
            )
    return list(servers)


@dataclass(frozen=True, slots=True)
class McpTool:
    name: str
    description: str
    schema: dict[str, Any]
    only_reads: bool


class McpServer:
    """Call ``connect`` first, and ``close`` in any case."""

    def __init__(self, spec: ServerSpec, cwd: Path) -> None:
        self.spec = spec
        self.tools: tuple[McpTool, ...] = ()
        self._cwd = cwd
        self._transport: HttpTransport | StdioTransport | None = None

    async def connect(self) -> None:
        """Raises McpError."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._connect()
        except TimeoutError:
            raise McpError(f"it was not ready within {CONNECT_TIMEOUT_S:g} s") from None

    async def call(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The raw result. Raises McpError."""
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
        await self._transport.request(
            "initialize",
            {
                "protocolVersion": REVISION,
                "capabilities": {},
                "clientInfo": {"name": "helexa-acp", "version": __version__},
            },
        )
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


async def _open(spec: ServerSpec, cwd: Path) -> HttpTransport | StdioTransport:
    from helexa_acp.mcp_transports import HttpTransport, StdioTransport  # httpx2 is slow to import

    if isinstance(spec, HttpMcpServer):
        return HttpTransport(spec.url, {header.name: header.value for header in spec.headers})
    environment = {variable.name: variable.value for variable in spec.env}
    return await StdioTransport.open(spec.command, spec.args, environment, cwd)


def tools_of(result: dict[str, Any]) -> list[McpTool]:
    """The tools of one page, without invalid entries."""
    listed = result.get("tools")
    found = []
    for entry in listed if isinstance(listed, list) else ():
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            continue
        schema, notes = entry.get("inputSchema"), entry.get("annotations")
        description = entry.get("description")
        found.append(
            McpTool(
                name=entry["name"],
                description=description if isinstance(description, str) else "",
                schema=_object_schema(clean(schema)),
                only_reads=isinstance(notes, dict) and notes.get("readOnlyHint") is True,
            )
        )
    return found


def _object_schema(schema: Any) -> dict[str, Any]:
    """APIs refuse tools whose schema is not an object's."""
    if not isinstance(schema, dict):
        schema = {}
    properties = schema.get("properties")
    own = {"type": "object", "properties": properties if isinstance(properties, dict) else {}}
    return {**schema, **own}


def parts_of(result: dict[str, Any]) -> tuple[Part, ...]:
    """A tool's answer: texts and images; other parts are named."""
    content = result.get("content")
    parts = [_part(block) for block in (content if isinstance(content, list) else ())]
    if not parts and "structuredContent" in result:
        parts = [Text(str(clean(result["structuredContent"])))]
    return tuple(parts) or (Text("[no content]"),)


def _part(block: Any) -> Part:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == "text" and isinstance(block.get("text"), str):
        return Text(clean(block["text"]))
    if kind == "image" and all(isinstance(block.get(key), str) for key in ("data", "mimeType")):
        return Image(block["mimeType"], block["data"])
    resource = block.get("resource") if kind == "resource" else None
    if isinstance(resource, dict) and isinstance(resource.get("text"), str):
        return Text(clean(resource["text"]))
    if kind == "resource_link" and isinstance(block.get("uri"), str):
        return Text(f"[resource: {clean(block['uri'])}]")
    return Text(f"[content of type {clean(str(kind))[:50]}]")


class McpPool:
    def __init__(self, specs: Sequence[ServerSpec], cwd: Path) -> None:
        self._servers = [McpServer(spec, cwd) for spec in specs]
        self._connecting = [asyncio.create_task(server.connect()) for server in self._servers]
        self.failures: dict[str, str] = {}
        """Reasons why servers cannot be used, by name."""

    async def tools(self) -> tuple[Tool, ...]:
        """The connected servers' tools, once each server is connected or has failed."""
        if self._connecting:
            await asyncio.wait(self._connecting)
        found: dict[str, Tool] = {}
        for server, task in zip(self._servers, self._connecting, strict=True):
            if task.cancelled():
                continue
            if error := task.exception():
                self.failures[server.spec.name] = str(error)
                continue
            for one in server.tools:
                tool = _as_tool(server, one)
                found.setdefault(tool.spec.name, tool)
        return tuple(found.values())

    async def close(self) -> None:
        for task in self._connecting:
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        await asyncio.gather(*(server.close() for server in self._servers), return_exceptions=True)


def tool_name(server: str, tool: str) -> str:
    """``mcp__server__tool``, like other clients; a name too long ends in a digest."""
    name = f"mcp__{server}__{tool}"
    if len(name) > MAX_NAME_LENGTH:
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        name = f"{name[: MAX_NAME_LENGTH - 9]}_{digest}"
    return wire_name(name)


def _as_tool(server: McpServer, tool: McpTool) -> Tool:
    label = f"{server.spec.name}: {tool.name}"

    async def preview(context: ToolContext, arguments: Arguments) -> Preview:
        return Preview(
            label,
            remembers=f"mcp {server.spec.name} {tool.name}",
            remembered_as=f"Always allow {tool.name} of {server.spec.name}, this session",
        )

    async def run(context: ToolContext, arguments: Arguments) -> Outcome:
        try:
            result = await server.call(tool.name, arguments)
        except McpError as error:
            raise ToolError(f"MCP server {server.spec.name}: {error}") from None
        return Outcome(parts_of(result), is_error=result.get("isError") is True)

    return Tool(
        ToolSpec(
            name=tool_name(server.spec.name, tool.name),
            description=tool.description or label,
            parameters=tool.schema,
        ),
        "other",
        Action.UNKNOWN_READ if tool.only_reads else Action.UNKNOWN,
        preview,
        run,
    )
