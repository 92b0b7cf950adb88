"""An MCP server over HTTP: every message a POST, answered with JSON or with a stream of events."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx2

from helexa_acp.errors import ConfigError, McpError
from helexa_acp.mcp.messages import REVISION, notification, reply_to, request, result_of
from helexa_acp.proxies import open_http

TIMEOUT = httpx2.Timeout(600.0, connect=10.0)
MAX_BODY_BYTES = 32 * 1024 * 1024
SESSION_HEADER = "mcp-session-id"


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
        """Cancelled, it closes the stream. Raises McpError."""
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
    data = b""
    async for chunk in response.aiter_bytes():
        data += chunk
        if len(data) > MAX_BODY_BYTES:
            raise McpError(f"its answer is larger than {MAX_BODY_BYTES} bytes")
    if data:
        yield data.decode("utf-8", "replace")


async def _events(response: httpx2.Response) -> AsyncIterator[str]:
    """The data of each server-sent event."""
    data: list[str] = []
    async for line in response.aiter_lines():
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            yield "\n".join(data)
            data = []
    if data:
        yield "\n".join(data)
