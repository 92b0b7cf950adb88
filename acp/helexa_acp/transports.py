"""JSON-RPC messages, one a line, with an editor or an MCP server; and HTTP with streams of events.

Only valid messages get through: some malformed ones would end the SDK's own loop.

Of the environment's proxies those of HTTP are used; one of another kind is refused where a request
would need it. Connections to this machine and the hosts of NO_PROXY are direct.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2

from helexa_acp import __version__
from helexa_acp.errors import ConfigError

PARSE_ERROR, INVALID_REQUEST = -32700, -32600
TIMEOUT = httpx2.Timeout(600.0, connect=10.0)
log = logging.getLogger(__name__)


@dataclass
class MalformedError(Exception):
    """``request_id`` is the request that the error answers."""

    code: int
    why: str
    request_id: int | str | None = None


class LineTransport:
    """``receive`` is for one task; ``send`` for any."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool = True
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._answers = answers
        self._sending = asyncio.Lock()

    async def send(self, message: dict[str, Any]) -> None:
        """Sends after earlier calls' messages. It is written before this first waits, unless
        another is still being sent. Raises ConnectionError."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        async with self._sending:
            try:
                self._writer.write(line)
                await self._writer.drain()
            except (OSError, RuntimeError) as error:
                raise ConnectionError("the other end is gone") from error

    async def receive(self) -> dict[str, Any] | None:
        """``None`` at the end."""
        while (line := await self._line()) is not None:
            try:
                message = parse(line) if line.strip() else None
            except MalformedError as error:
                log.warning("a malformed message: %s", error.why)
                if self._answers:
                    await self._refuse(error)
                continue
            if message is not None:
                return message
        return None

    async def close(self) -> None:
        self._writer.close()

    async def _line(self) -> bytes | None:
        begun = b""
        while True:
            try:
                return begun + await self._reader.readuntil(b"\n")
            except ConnectionError:
                # A socket whose other end closed with unread data.
                return None
            except asyncio.IncompleteReadError as error:
                return begun + error.partial or None
            except asyncio.LimitOverrunError as error:
                begun += await self._reader.readexactly(error.consumed)

    async def _refuse(self, error: MalformedError) -> None:
        error_object = {"code": error.code, "message": error.why}
        with suppress(ConnectionError):
            await self.send({"jsonrpc": "2.0", "id": error.request_id, "error": error_object})


def parse(line: bytes) -> dict[str, Any] | None:
    """``None``: an unusable answer. Raises MalformedError."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise MalformedError(PARSE_ERROR, "the line is no JSON") from None
    if not isinstance(message, dict):
        raise MalformedError(INVALID_REQUEST, "a message is an object")
    if "method" not in message:
        return _response(message)
    request_id = message.get("id")
    if isinstance(request_id, bool) or not isinstance(request_id, int | str | None):
        raise MalformedError(INVALID_REQUEST, "an id is a number or a string")
    if not isinstance(message["method"], str):
        raise MalformedError(INVALID_REQUEST, "a method is a string", request_id)
    params = message.get("params")
    if params is not None and not isinstance(params, dict):
        raise MalformedError(INVALID_REQUEST, "params are an object", request_id)
    # The SDK spreads _meta over the parameters, where it could take their place.
    return message | {"params": {k: v for k, v in (params or {}).items() if k != "_meta"}}


def _response(message: dict[str, Any]) -> dict[str, Any] | None:
    if not isinstance(message.get("id"), int) or isinstance(message["id"], bool):
        return None
    error = message.get("error")
    if "result" not in message and error is not None and not isinstance(error, dict):
        return {"id": message["id"], "error": {"message": str(error)}}
    return message


def open_http(url: str, **options: Any) -> httpx2.AsyncClient:
    """Raises ConfigError."""
    client = httpx2.AsyncClient(
        transport=httpx2.AsyncHTTPTransport(proxy=proxy_for(url)), timeout=TIMEOUT, **options
    )
    client.headers["User-Agent"] = f"helexa-acp/{__version__}"
    return client


async def event_data(response: httpx2.Response) -> AsyncIterator[str]:
    data: list[str] = []
    async for line in response.aiter_lines():
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            yield "\n".join(data)
            data = []
    if data:
        yield "\n".join(data)


def proxy_for(url: str) -> str | None:
    """``None``: a direct connection. Raises ConfigError."""
    parts, proxies = urlsplit(url), getproxies()
    host, netloc = parts.hostname or "", parts.netloc.rpartition("@")[2]
    kind = parts.scheme if parts.scheme in proxies else "all"
    proxy = proxies.get(kind)
    names = [name.strip().lower() for name in proxies.get("no", "").split(",")]
    if proxy is None or proxy_bypass(netloc) or _is_direct(host, names):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not _is_http(proxy):
        variable = f"{kind}_proxy"
        variable = variable if os.environ.get(variable) else variable.upper()
        raise ConfigError(
            f"{variable} names a proxy that is not supported ({proxy.partition(':')[0]}://…): name "
            f"an HTTP proxy like http://proxy:3128 in {parts.scheme}_proxy, or {host} in NO_PROXY"
        )
    return proxy


def _is_http(proxy: str) -> bool:
    try:
        parts = urlsplit(proxy)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _is_direct(host: str, names: Sequence[str]) -> bool:
    """The standard library does not support patterns and networks in NO_PROXY."""
    if any(fnmatchcase(host, name) for name in ("localhost", "*.localhost", *names)):
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    is_here = address.is_loopback or address.is_unspecified
    return is_here or any(address in network for network in _networks(names))


def _networks(names: Sequence[str]) -> Iterator[IPv4Network | IPv6Network]:
    for name in names:
        with suppress(ValueError):
            yield ip_network(name.strip("[]"), strict=False)
