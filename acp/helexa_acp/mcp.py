"""The MCP servers of one session: their connections, tools and calls."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acp.schema import HttpMcpServer, McpServerStdio

from helexa_acp import __version__
from helexa_acp.errors import ConfigError, McpError, ToolError
from helexa_acp.history import Image, Part, Text, clean
from helexa_acp.mcp_transports import REVISION, HttpTransport, Json, StdioTransport
from helexa_acp.modes import Action
from helexa_acp.tools.base import Arguments, Outcome, Prepared, Tool, ToolContext
from helexa_acp.wire import MAX_NAME_LENGTH, ToolSpec, wire_name

CONNECT_TIMEOUT_S = 60.0
"""A server may be downloaded by its first start."""
MAX_PAGES = 50
ServerSpec = McpServerStdio | HttpMcpServer
Transport = StdioTransport | HttpTransport


def checked_specs(servers: Sequence[Any]) -> list[ServerSpec]:
    """The editor's list of servers. Raises ConfigError for a kind that is not announced."""
    for server in servers:
        if not isinstance(server, ServerSpec):
            raise ConfigError(
                f"MCP server {server.name}: {server.type} is not supported, stdio and http are"
            )
    return list(servers)


class McpPool:
    def __init__(self, specs: Sequence[ServerSpec], cwd: Path) -> None:
        self._cwd = cwd
        self._transports: list[Transport] = []
        self._connecting = {asyncio.create_task(self._connect(spec)): spec.name for spec in specs}

    async def tools(self) -> tuple[dict[str, Tool], dict[str, str]]:
        """The connected servers' tools by name, once each server is connected or has failed; and
        the reasons why servers cannot be used, by name."""
        if self._connecting:
            await asyncio.wait(self._connecting)  # a cancelled prompt cancels no connection
        tools: dict[str, Tool] = {}
        failures: dict[str, str] = {}
        for task, server in self._connecting.items():
            if error := task.exception():
                failures[server] = str(error)
                continue
            for tool in task.result():
                tools.setdefault(tool.spec.name, tool)
        return tools, failures

    async def close(self) -> None:
        for task in self._connecting:
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        await asyncio.gather(*(one.close() for one in self._transports), return_exceptions=True)

    async def _connect(self, spec: ServerSpec) -> list[Tool]:
        """Raises McpError."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                transport = await _open(spec, self._cwd)
                self._transports.append(transport)
                return await _greeted(spec.name, transport)
        except TimeoutError:
            raise McpError(f"it was not ready within {CONNECT_TIMEOUT_S:g} s") from None


async def _open(spec: ServerSpec, cwd: Path) -> Transport:
    if isinstance(spec, HttpMcpServer):
        return HttpTransport(spec.url, {header.name: header.value for header in spec.headers})
    environment = {variable.name: variable.value for variable in spec.env}
    return await StdioTransport.open(spec.command, spec.args, environment, cwd)


async def _greeted(server: str, transport: Transport) -> list[Tool]:
    client = {"name": "helexa-acp", "version": __version__}
    greeting = {"protocolVersion": REVISION, "capabilities": {}, "clientInfo": client}
    await transport.request("initialize", greeting)
    await transport.notify("notifications/initialized")
    tools: list[Tool] = []
    params: Json = {}
    for _ in range(MAX_PAGES):
        result = await transport.request("tools/list", params)
        tools += tools_of(server, transport, result)
        params = {"cursor": result.get("nextCursor")}
        if not isinstance(params["cursor"], str):
            break
    return tools


def tools_of(server: str, transport: Transport, result: Json) -> list[Tool]:
    """The tools of one page, without invalid entries."""
    listed = result.get("tools")
    return [
        _tool(server, transport, entry)
        for entry in (listed if isinstance(listed, list) else ())
        if isinstance(entry, dict) and isinstance(entry.get("name"), str)
    ]


def _tool(server: str, transport: Transport, entry: Json) -> Tool:
    name, description, notes = entry["name"], entry.get("description"), entry.get("annotations")
    only_reads = isinstance(notes, dict) and notes.get("readOnlyHint") is True
    label = f"{server}: {name}"

    async def prepare(context: ToolContext, arguments: Arguments) -> Prepared:
        async def run() -> Outcome:
            params = {"name": name, "arguments": dict(arguments)}
            try:
                result = await transport.request("tools/call", params)
            except McpError as error:
                raise ToolError(f"MCP server {server}: {error}") from None
            return Outcome(parts_of(result), is_error=result.get("isError") is True)

        return Prepared(
            label,
            run,
            remembers=f"mcp {server} {name}",
            remembered_as=f"Always allow {name} of {server}, this session",
        )

    spec = ToolSpec(
        name=tool_name(server, name),
        description=description if isinstance(description, str) and description else label,
        parameters=_object_schema(clean(entry.get("inputSchema"))),
    )
    return Tool(spec, "other", Action.UNKNOWN_READ if only_reads else Action.UNKNOWN, prepare)


def tool_name(server: str, tool: str) -> str:
    """``mcp__server__tool``, like other clients; a name too long ends in a digest."""
    name = f"mcp__{server}__{tool}"
    if len(name) > MAX_NAME_LENGTH:
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        name = f"{name[: MAX_NAME_LENGTH - 9]}_{digest}"
    return wire_name(name)


def _object_schema(schema: Any) -> Json:
    """APIs refuse tools whose schema is not an object's."""
    schema = schema if isinstance(schema, dict) else {}
    properties = schema.get("properties")
    own = {"type": "object", "properties": properties if isinstance(properties, dict) else {}}
    return {**schema, **own}


def parts_of(result: Json) -> tuple[Part, ...]:
    """A tool's answer: texts and images; other parts are named."""
    content = result.get("content")
    parts = [_part(clean(block)) for block in (content if isinstance(content, list) else ())]
    if not parts and "structuredContent" in result:
        parts = [Text(str(clean(result["structuredContent"])))]
    return tuple(parts) or (Text("[no content]"),)


def _part(block: Any) -> Part:
    match block:
        case {"type": "text", "text": str(text)}:
            return Text(text)
        case {"type": "image", "data": str(data), "mimeType": str(mime_type)}:
            return Image(mime_type, data)
        case {"type": "resource", "resource": {"text": str(text)}}:
            return Text(text)
        case {"type": "resource_link", "uri": str(uri)}:
            return Text(f"[resource: {uri}]")
        case {"type": kind}:
            return Text(f"[content of type {str(kind)[:50]}]")
    return Text("[content of type None]")
