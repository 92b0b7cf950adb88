"""MCP servers as the editor hands them over. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from acp.schema import HttpMcpServer, McpServerStdio

from helexa_acp.mcp.server import HttpServer, ServerSpec, StdioServer


class UnsupportedServerError(ValueError):
    """A kind of server whose capability this agent does not announce."""


def server_specs(servers: Sequence[Any]) -> list[ServerSpec]:
    """Raises UnsupportedServerError."""
    return [_spec(server) for server in servers]


def _spec(server: Any) -> ServerSpec:
    if isinstance(server, HttpMcpServer):
        headers = {header.name: header.value for header in server.headers}
        return HttpServer(name=server.name, url=server.url, headers=headers)
    if isinstance(server, McpServerStdio):
        return StdioServer(
            name=server.name,
            command=server.command,
            arguments=tuple(server.args),
            environment={variable.name: variable.value for variable in server.env},
        )
    raise UnsupportedServerError(
        f"MCP server {server.name}: {server.type} is not supported, stdio and http are"
    )
