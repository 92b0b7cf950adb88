"""The connections to one upstream: the idle one used last is reused first.

httpx2's own pool asks the kernel about each idle connection for each request: with 64 requests at
once that took more than the rest of a forwarded request. The caller bounds the number of
connections. Errors are httpx2's.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterable

import httpx2

from inference.gateway.upstreams.connection import Headers, UpstreamConnection

KEEP_ALIVE_S = 30.0
DRAIN_TIMEOUT_S = 0.5
ADDRESS_DELAY_S = 0.25
"""When a host's next address is tried beside one that does not answer (RFC 8305)."""
SECURE = "https"
PORTS = {"http": 80, SECURE: 443}
OK, FIRST_REDIRECT = 200, 300


class UpstreamTransport:
    def __init__(self, context: ssl.SSLContext, *, proxy: str, connect_timeout_s: float) -> None:
        context.set_alpn_protocols(["http/1.1"])
        self._context = context
        self._proxy = httpx2.URL(proxy) if proxy else None
        self._connect_timeout_s = connect_timeout_s
        self._idle: list[UpstreamConnection] = []
        self._open: set[UpstreamConnection] = set()
        self._draining: set[asyncio.Task[None]] = set()
        self._is_retired = False

    async def send(
        self,
        method: bytes,
        url: httpx2.URL,
        headers: Headers,
        body: bytes | AsyncIterable[bytes],
        until_s: float | None = None,
        *,
        with_part: bool = False,
    ) -> UpstreamConnection:
        """``headers`` are all that are sent, ``host`` and the body's length among them. The caller
        frees the connection. ``until_s`` is on the event loop's clock. Raises
        ``httpx2.TransportError``, ``TimeoutError``."""
        connection = self._taken()
        if connection is None:
            async with asyncio.timeout_at(until_s):
                connection = await self._connected(url)
        self._open.add(connection)
        try:
            await connection.send_request(method, self._target(url), headers, body, until_s)
            await connection.read_head(until_s, with_part=with_part)
        except BaseException:
            self.free(connection)
            raise
        return connection

    def free(self, connection: UpstreamConnection) -> None:
        if connection not in self._open:
            return
        self._open.discard(connection)
        if self._is_retired or not connection.is_reusable:
            connection.abort()
            return
        connection.transport.resume_reading()  # to see that the upstream closes it
        connection.idle_since_s = asyncio.get_running_loop().time()
        self._idle.append(connection)

    def free_drained(self, connection: UpstreamConnection) -> None:
        if connection.is_complete:
            self.free(connection)
            return
        task = asyncio.create_task(self._drain(connection))
        self._draining.add(task)
        task.add_done_callback(self._draining.discard)

    def retire(self) -> None:
        self._is_retired = True
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    def close(self) -> None:
        for task in self._draining:
            task.cancel()
        for connection in (*self._idle, *self._open):
            connection.abort()
        self._idle.clear()

    async def _drain(self, connection: UpstreamConnection) -> None:
        until_s = asyncio.get_running_loop().time() + DRAIN_TIMEOUT_S
        try:
            await connection.next_part(until_s)
        except (TimeoutError, httpx2.HTTPError):
            pass  # the connection is closed, and another one opened
        finally:
            self.free(connection)

    def _taken(self) -> UpstreamConnection | None:
        oldest_s = asyncio.get_running_loop().time() - KEEP_ALIVE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable and connection.idle_since_s > oldest_s:
                return connection
            connection.abort()
        return None

    def _target(self, url: httpx2.URL) -> bytes:
        if self._proxy is None or url.scheme == SECURE:
            return url.raw_path
        return bytes(str(url.copy_with(fragment=None)), "ascii")

    async def _connected(self, url: httpx2.URL) -> UpstreamConnection:
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                if self._proxy is None:
                    return await self._opened(url)
                return await self._through(self._proxy, url)
        except TimeoutError:
            raise httpx2.ConnectTimeout("No connection within the time.") from None
        except (OSError, ssl.CertificateError) as error:
            raise httpx2.ConnectError(type(error).__name__) from None

    async def _opened(self, url: httpx2.URL) -> UpstreamConnection:
        is_secure = url.scheme == SECURE
        _, connection = await asyncio.get_running_loop().create_connection(
            UpstreamConnection,
            url.host,
            _port(url),
            ssl=self._context if is_secure else None,
            server_hostname=url.host if is_secure else None,
            happy_eyeballs_delay=ADDRESS_DELAY_S,
        )
        return connection

    async def _through(self, proxy: httpx2.URL, url: httpx2.URL) -> UpstreamConnection:
        connection = await self._opened(proxy)
        if url.scheme != SECURE:
            return connection
        try:
            host = f"[{url.host}]" if ":" in url.host else url.host
            address = f"{host}:{_port(url)}".encode("ascii")
            headers: Headers = [(b"host", address), (b"user-agent", b"helexa")]
            await connection.send_request(b"CONNECT", address, headers, b"")
            await connection.read_head()
            if not OK <= connection.status < FIRST_REDIRECT:
                raise httpx2.ProxyError(f"The proxy answers with status {connection.status}.")
            secured = await asyncio.get_running_loop().start_tls(
                connection.transport, connection, self._context, server_hostname=url.host
            )
        except BaseException:
            connection.abort()
            raise
        assert secured is not None
        connection.tunnelled(secured)
        return connection


def _port(url: httpx2.URL) -> int:
    return url.port or PORTS[url.scheme]
