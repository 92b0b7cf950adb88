"""The two transports to an MCP server: a child process with one JSON message a line, and HTTP,
where every message is a POST, answered with JSON or with a stream of events.

The ``mcp`` package is not used: with it 32 packages are installed instead of 15 (49 MB, not 27),
its import takes two seconds, and it refuses all tools of a server for one that is malformed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx2

from helexa_acp.errors import ConfigError, McpError
from helexa_acp.mcp import REVISION
from helexa_acp.proxies import open_http
from helexa_acp.tools.bash import end_group

METHOD_NOT_FOUND = -32601
LINE_LIMIT_BYTES = 32 * 1024 * 1024
TIMEOUT = httpx2.Timeout(600.0, connect=10.0)
SESSION_HEADER = "mcp-session-id"
log = logging.getLogger(__name__)


def request(request_id: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}


def notification(method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    return message if params is None else message | {"params": params}


def reply_to(asked: dict[str, Any]) -> dict[str, Any] | None:
    """Our answer to a server's request or notification; ``None``: it needs none. We answer only
    ping."""
    if "id" not in asked:
        return None
    base = {"jsonrpc": "2.0", "id": asked["id"]}
    if asked.get("method") == "ping":
        return base | {"result": {}}
    return base | {"error": {"code": METHOD_NOT_FOUND, "message": "this client has no such method"}}


def result_of(response: dict[str, Any]) -> dict[str, Any]:
    """Raises McpError."""
    error = response.get("error")
    if error is not None:
        message = error.get("message") if isinstance(error, dict) else error
        raise McpError(f"it answered with an error: {str(message)[:1000]}")
    result = response.get("result")
    if not isinstance(result, dict):
        raise McpError("it answered with something that is no result")
    return result


class StdioTransport:
    """``open`` starts the process. Waiting callers get an error when it exits."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next_id = 1
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def open(
        cls, command: str, arguments: list[str], environment: Mapping[str, str], cwd: Path
    ) -> StdioTransport:
        """Raises McpError. The process inherits our standard error."""
        try:
            process = await asyncio.create_subprocess_exec(
                command,
                *arguments,
                cwd=cwd,
                env={**os.environ, **environment},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=LINE_LIMIT_BYTES,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise McpError(f"it did not start: {error}") from None
        return cls(process)

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if self._reading.done():
            raise McpError("it has ended")
        request_id, self._next_id = self._next_id, self._next_id + 1
        future = asyncio.get_running_loop().create_future()
        self._pending[request_id] = future
        try:
            await self._send(request(request_id, method, params))
            return result_of(await future)
        except asyncio.CancelledError:
            gone = {"requestId": request_id, "reason": "the user cancelled"}
            with contextlib.suppress(McpError):
                self._write(notification("notifications/cancelled", gone))
            raise
        finally:
            self._pending.pop(request_id, None)

    async def notify(self, method: str) -> None:
        await self._send(notification(method))

    async def close(self) -> None:
        """Gently: its input ends first, then it gets SIGTERM, then SIGKILL."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._process.wait()
        await end_group(self._process)
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    def _write(self, message: dict[str, Any]) -> None:
        if self._process.stdin is None or self._process.stdin.is_closing():
            raise McpError("it has ended")
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def _send(self, message: dict[str, Any]) -> None:
        self._write(message)
        assert self._process.stdin is not None
        try:
            await self._process.stdin.drain()
        except OSError as error:
            raise McpError(f"it takes no more input: {error}") from None

    async def _read(self) -> None:
        why = "it has ended"
        try:
            await self._read_lines()
        except ValueError:
            why = f"it wrote a line of more than {LINE_LIMIT_BYTES} bytes"
        except (OSError, McpError) as error:
            why = str(error)
        finally:
            for future in self._pending.values():
                if not future.done():
                    future.set_exception(McpError(why))

    async def _read_lines(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                log.warning("an MCP server wrote a line that is no JSON")
                continue
            if not isinstance(message, dict):
                continue
            if "method" in message:
                if answer := reply_to(message):
                    await self._send(answer)
                continue
            answered = message.get("id")
            future = self._pending.get(answered) if isinstance(answered, int) else None
            if future is not None and not future.done():
                future.set_result(message)


class HttpTransport:
    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        """Raises McpError."""
        self._url = url
        try:
            self._client = open_http(url, timeout=TIMEOUT, headers=dict(headers))
        except ConfigError as error:
            raise McpError(str(error)) from None
        self._session_id: str | None = None
        self._next_id = 1

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """A cancellation closes the stream. Raises McpError."""
        request_id, self._next_id = self._next_id, self._next_id + 1
        message = request(request_id, method, params)
        try:
            async with self._client.stream(
                "POST", self._url, json=message, headers=self._headers()
            ) as response:
                await _check(response)
                self._session_id = response.headers.get(SESSION_HEADER, self._session_id)
                async for message in _messages(response):
                    if "method" in message:
                        if answer := reply_to(message):
                            await self._post(answer)
                    elif message.get("id") == request_id:
                        return result_of(message)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise McpError(f"it cannot be reached: {error or type(error).__name__}") from None
        raise McpError("its answer ended without a result")

    async def notify(self, method: str) -> None:
        try:
            await self._post(notification(method))
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise McpError(f"it cannot be reached: {error or type(error).__name__}") from None

    async def close(self) -> None:
        if self._session_id is not None:
            with contextlib.suppress(httpx2.HTTPError):
                await self._client.delete(self._url, headers=self._headers(), timeout=2.0)
        await self._client.aclose()

    async def _post(self, message: dict[str, Any]) -> None:
        await _check(await self._client.post(self._url, json=message, headers=self._headers()))

    def _headers(self) -> dict[str, str]:
        headers = {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": REVISION,
        }
        return headers if self._session_id is None else headers | {SESSION_HEADER: self._session_id}


async def _check(response: httpx2.Response) -> None:
    if response.status_code >= 400:
        raise McpError(f"it answered with HTTP status {response.status_code}")


async def _messages(response: httpx2.Response) -> AsyncIterator[dict[str, Any]]:
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        texts = _events(response)
    else:
        texts = _whole(response)
    async for text in texts:
        try:
            read = json.loads(text)
        except (ValueError, RecursionError):
            raise McpError("it answered with something that is no JSON") from None
        for message in read if isinstance(read, list) else [read]:
            if isinstance(message, dict):
                yield message


async def _whole(response: httpx2.Response) -> AsyncIterator[str]:
    if data := await response.aread():
        yield data.decode("utf-8", "replace")


async def _events(response: httpx2.Response) -> AsyncIterator[str]:
    data: list[str] = []
    async for line in response.aiter_lines():
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            yield "\n".join(data)
            data = []
    if data:
        yield "\n".join(data)
