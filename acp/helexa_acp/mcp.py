"""The MCP servers of one session: their connections, tools and calls.

A server is a child process with one JSON message a line, or is reached over HTTP. The ``mcp``
package is not used: it brings 17 packages (22 MB), its import takes two seconds, and it refuses all
tools of a server for one that is malformed.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
from acp.schema import HttpMcpServer, McpServerStdio

from helexa_acp import __version__
from helexa_acp.errors import ConfigError, McpError, ToolError
from helexa_acp.history import Image, Part, Text, clean
from helexa_acp.tools import Action, Arguments, Outcome, Prepared, Tool, ToolContext
from helexa_acp.tools.programs import end_group
from helexa_acp.transports import LineTransport, event_data, open_http
from helexa_acp.wire import MAX_NAME_LENGTH, Json, ToolSpec, wire_name

CONNECT_TIMEOUT_S = 60.0
"""A server may be downloaded by its first start."""
MAX_PAGES = 50
ServerSpec = McpServerStdio | HttpMcpServer
REVISION = "2025-06-18"
"""https://modelcontextprotocol.io/specification/2025-06-18"""
METHOD_NOT_FOUND = -32601
BUFFER_BYTES = 32 * 1024 * 1024
SESSION_HEADER = "mcp-session-id"


def message_of(method: str, params: Json | None = None) -> Json:
    message: Json = {"jsonrpc": "2.0", "method": method}
    return message if params is None else message | {"params": params}


def reply_to(asked: Json) -> Json | None:
    """We answer only ping. ``None``: no answer is needed."""
    if "id" not in asked:
        return None
    base = {"jsonrpc": "2.0", "id": asked["id"]}
    if asked.get("method") == "ping":
        return base | {"result": {}}
    return base | {"error": {"code": METHOD_NOT_FOUND, "message": "this client has no such method"}}


def result_of(response: Json) -> Json:
    error = response.get("error")
    if error is not None:
        message = error.get("message") if isinstance(error, dict) else error
        raise McpError(f"it answered with an error: {str(message)[:1000]}")
    result = response.get("result")
    if not isinstance(result, dict):
        raise McpError("it answered with something that is no result")
    return result


class StdioTransport:
    """Waiting callers get an error when the process exits."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process = process
        self._lines = LineTransport(process.stdout, process.stdin, answers=False)
        self._pending: dict[int, asyncio.Future[Json]] = {}
        self._ids = count(1)
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def open(cls, spec: McpServerStdio, cwd: Path) -> StdioTransport:
        """Raises McpError. The process inherits our standard error."""
        try:
            process = await asyncio.create_subprocess_exec(
                spec.command,
                *spec.args,
                cwd=cwd,
                env={**os.environ, **{variable.name: variable.value for variable in spec.env}},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=BUFFER_BYTES,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise McpError(f"it did not start: {error}") from None
        return cls(process)

    async def request(self, method: str, params: Json) -> Json:
        """Raises McpError."""
        if self._reading.done():
            raise McpError("it has ended")
        request_id = next(self._ids)
        future = self._pending[request_id] = asyncio.get_running_loop().create_future()
        try:
            await self._send(message_of(method, params) | {"id": request_id})
            return result_of(await future)
        except asyncio.CancelledError:
            gone = {"requestId": request_id, "reason": "the user cancelled"}
            with contextlib.suppress(McpError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._send(message_of("notifications/cancelled", gone))
            raise
        finally:
            self._pending.pop(request_id, None)

    async def notify(self, method: str) -> None:
        await self._send(message_of(method))

    async def close(self) -> None:
        """Ends its input first, then SIGTERM, then SIGKILL."""
        await self._lines.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._process.wait()
        await end_group(self._process)
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _send(self, message: Json) -> None:
        try:
            await self._lines.send(message)
        except ConnectionError:
            raise McpError("it has ended") from None

    async def _read(self) -> None:
        try:
            while (message := await self._lines.receive()) is not None:
                if "method" in message:
                    if answer := reply_to(message):
                        await self._send(answer)
                elif (future := self._pending.get(message["id"])) and not future.done():
                    future.set_result(message)
        except McpError:
            return
        finally:
            for future in self._pending.values():
                if not future.done():
                    future.set_exception(McpError("it has ended"))


class HttpTransport:
    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url = url
        try:
            self._client = open_http(url, headers=dict(headers))
        except ConfigError as error:
            raise McpError(str(error)) from None
        self._session_id: str | None = None
        self._ids = count(1)

    async def request(self, method: str, params: Json) -> Json:
        """A cancellation closes the stream. Raises McpError."""
        request_id = next(self._ids)
        asked = message_of(method, params) | {"id": request_id}
        with _reachable():
            async with self._client.stream(
                "POST", self._url, json=asked, headers=self._headers()
            ) as response:
                _check(response)
                self._session_id = response.headers.get(SESSION_HEADER, self._session_id)
                async for message in _messages(response):
                    if "method" in message:
                        if answer := reply_to(message):
                            await self._post(answer)
                    elif message.get("id") == request_id:
                        return result_of(message)
        raise McpError("its answer ended without a result")

    async def notify(self, method: str) -> None:
        with _reachable():
            await self._post(message_of(method))

    async def close(self) -> None:
        if self._session_id is not None:
            with contextlib.suppress(httpx2.HTTPError):
                await self._client.delete(self._url, headers=self._headers(), timeout=2.0)
        await self._client.aclose()

    async def _post(self, message: Json) -> None:
        _check(await self._client.post(self._url, json=message, headers=self._headers()))

    def _headers(self) -> dict[str, str]:
        headers = {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": REVISION,
        }
        return headers if self._session_id is None else headers | {SESSION_HEADER: self._session_id}


@contextlib.contextmanager
def _reachable() -> Iterator[None]:
    try:
        yield
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise McpError(f"it cannot be reached: {error or type(error).__name__}") from None


def _check(response: httpx2.Response) -> None:
    if response.status_code >= 400:
        raise McpError(f"it answered with HTTP status {response.status_code}")


async def _messages(response: httpx2.Response) -> AsyncIterator[Json]:
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        async for data in event_data(response):
            yield _message(data)
    elif data := (await response.aread()).decode("utf-8", "replace"):
        yield _message(data)


def _message(text: str) -> Json:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise McpError("it answered with something that is no JSON object")
    return message


Transport = StdioTransport | HttpTransport


def checked_specs(servers: Sequence[Any]) -> list[ServerSpec]:
    """Raises ConfigError for a kind that is not announced."""
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
        """Waits until each server is connected or has failed. The reasons are by server."""
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
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                transport: Transport
                if isinstance(spec, HttpMcpServer):
                    headers = {header.name: header.value for header in spec.headers}
                    transport = HttpTransport(spec.url, headers)
                else:
                    transport = await StdioTransport.open(spec, self._cwd)
                self._transports.append(transport)
                return await _greeted(spec.name, transport)
        except TimeoutError:
            raise McpError(f"it was not ready within {CONNECT_TIMEOUT_S:g} s") from None


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
    """Leaves invalid entries out."""
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
    """``mcp__server__tool``, like other clients; a long name ends in a digest."""
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
