"""The MCP servers of one session. They connect in the background; the first prompt waits for them.
One that fails takes nothing else with it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path

from helexa_acp.errors import McpError, ToolError
from helexa_acp.mcp.messages import McpTool, parts_of
from helexa_acp.mcp.server import McpServer, ServerSpec
from helexa_acp.rounds.modes import Action
from helexa_acp.tools.base import Arguments, Outcome, Preview, Tool, ToolContext
from helexa_acp.wire.base import ToolSpec
from helexa_acp.wire.names import MAX_LENGTH, wire_name


class McpPool:
    def __init__(self, specs: Sequence[ServerSpec], cwd: Path) -> None:
        self._servers = [McpServer(spec, cwd) for spec in specs]
        self._connecting = [asyncio.create_task(server.connect()) for server in self._servers]
        self.failures: dict[str, str] = {}
        """Why servers cannot be used, by name."""

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
    """Returns ``mcp__server__tool``, as other clients name tools; a name too long ends in a
    digest."""
    name = f"mcp__{server}__{tool}"
    if len(name) > MAX_LENGTH:
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        name = f"{name[: MAX_LENGTH - 9]}_{digest}"
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
