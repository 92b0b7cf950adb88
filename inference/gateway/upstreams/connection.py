"""One HTTP/1.1 connection to an upstream, as an asyncio protocol.

    opened ─▶ send_request ─▶ head ─▶ next_part ─▶ finish ─┬▶ the next request
                                                          └▶ abort

    AnswerParser: begin ─▶ feed … ─▶ has_head ─▶ take … ─▶ is_complete      feed_eof: no more comes

llhttp parses, which is strict: no bare line feeds, no two lengths, no length beside chunks. It
parses bytes as they come; while more than ``MAX_UNREAD_BYTES`` of a body wait here, nothing is
read. Errors are httpx2's. Must not know the requests.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterable, AsyncIterator

import httptools
import httpx2

MAX_HEAD_BYTES = 64 * 1024
"""The most that may come without any of the body: head, extensions of chunks and trailers."""
FIRST_FINAL = 200
NO_BODY = frozenset({204, 304})
CONTENT_LENGTH, TRANSFER_ENCODING, CHUNKED = b"content-length", b"transfer-encoding", b"chunked"
NAME = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
TARGET = re.compile(rb"[\x21-\x7e]+")

Headers = list[tuple[bytes, bytes]]


def request_head(method: bytes, target: bytes, headers: Headers) -> bytes:
    """``headers`` have the body's length. Raises ``httpx2.LocalProtocolError``."""
    if not TARGET.fullmatch(target):
        raise httpx2.LocalProtocolError("A request's target has an illegal character.")
    lines = [b"%s %s HTTP/1.1" % (method, target)]
    for name, value in headers:
        if not NAME.fullmatch(name) or not VALUE.fullmatch(value):
            raise httpx2.LocalProtocolError("A header has an illegal character.")
        lines.append(b"%s: %s" % (name, value))
    return b"\r\n".join((*lines, b"", b""))


class AnswerParser:
    def __init__(self) -> None:
        self._http = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self.begin()

    def begin(self) -> None:
        self.status = 0
        self.headers: Headers = []
        self.has_head = False
        self.is_complete = False
        self.fault = ""
        self.keeps_alive = False
        self._ends_at_eof = False
        self._num_bytes_without_body = 0
        self._body.clear()
        self.num_unread_bytes = 0

    def feed(self, data: bytes) -> None:
        if self.fault:
            return
        self._num_bytes_without_body += len(data)
        try:
            self._http.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._refuse(f"What comes is no answer: {error}.")
        if self._num_bytes_without_body > MAX_HEAD_BYTES:
            self._refuse("The answer's head is too large.")

    def feed_eof(self) -> None:
        self.is_complete = self.is_complete or (self._ends_at_eof and not self.fault)
        self._refuse("The upstream has closed the connection.")

    def take(self) -> bytes:
        body = self._body
        if not body:
            return b""
        taken = body[0] if len(body) == 1 else b"".join(body)
        body.clear()
        self.num_unread_bytes = 0
        return taken

    # Called by httptools.

    def on_message_begin(self) -> None:
        if self.is_complete:
            raise httpx2.RemoteProtocolError("more than the answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.has_head:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._http.get_status_code()
        if status < FIRST_FINAL:
            self.headers.clear()
            return
        if not self._http.get_http_version().startswith("1."):
            raise httpx2.RemoteProtocolError("another version of HTTP")
        has_length = False
        for name, value in self.headers:
            if name == CONTENT_LENGTH:
                has_length = True
            elif name == TRANSFER_ENCODING:
                has_length = True
                if value.lower() != CHUNKED:
                    raise httpx2.RemoteProtocolError("another transfer coding than chunks")
        self.status, self.has_head = status, True
        self._ends_at_eof = not has_length and status not in NO_BODY
        self.keeps_alive = self._http.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        self._num_bytes_without_body = 0
        self._body.append(body)
        self.num_unread_bytes += len(body)

    def on_message_complete(self) -> None:
        self.is_complete = self.has_head

    def _refuse(self, why: str) -> None:
        """Bytes behind a complete answer only keep its connection from being reused."""
        self.keeps_alive = False
        if not self.is_complete:
            self.fault = self.fault or why


MAX_UNREAD_BYTES = 64 * 1024
WRITE_BYTES = 256 * 1024
"""The transport copies what the socket does not take at once."""
GATHER_S = 0.02
"""Each wake-up costs as much as ten tokens."""
OK = 200


class UpstreamConnection(asyncio.Protocol):
    """One request at a time, on one event loop. After ``until_s`` of its clock a wait raises
    ``TimeoutError``; ``None``: no limit."""

    transport: asyncio.Transport
    status: int
    headers: dict[str, str]
    """With names in lower case."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._answer = AnswerParser()
        self._has_ended = False
        self._may_write = True
        self._is_sent = False
        self._waiter: asyncio.Future[None] | None = None
        self._gathering: asyncio.TimerHandle | None = None
        self._awaits_part = False
        self._last_part_s = 0.0
        self.gathers = False
        self.idle_since_s = 0.0

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        answer.feed(data)
        is_full = answer.num_unread_bytes > MAX_UNREAD_BYTES
        if is_full:
            self.transport.pause_reading()
        if self._has_head_alone:
            return
        due_s = self._last_part_s + GATHER_S
        if is_full or answer.is_complete or not self.gathers or self._loop.time() >= due_s:
            self._wake()
        elif self._gathering is None:
            self._gathering = self._loop.call_at(due_s, self._wake)

    def eof_received(self) -> None:
        self._has_ended = True
        self._answer.feed_eof()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.eof_received()

    def pause_writing(self) -> None:
        self._may_write = False

    def resume_writing(self) -> None:
        self._may_write = True
        self._wake()

    # Called for a request.

    @property
    def is_complete(self) -> bool:
        return self._answer.is_complete

    @property
    def is_reusable(self) -> bool:
        is_open = not self._has_ended and not self.transport.is_closing()
        return self._is_sent and self.is_complete and self._answer.keeps_alive and is_open

    def tunnelled(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self._answer = AnswerParser()

    async def send_request(
        self,
        method: bytes,
        target: bytes,
        headers: Headers,
        body: bytes | AsyncIterable[bytes],
        until_s: float | None = None,
    ) -> None:
        """Raises ``httpx2.TransportError``, ``TimeoutError``."""
        self._is_sent = self.gathers = False
        self._answer.begin()
        if self._has_ended:
            self._answer.feed_eof()
        head = request_head(method, target, headers)
        if isinstance(body, bytes) and len(body) <= WRITE_BYTES:
            self.transport.write(head + body)
        else:
            self.transport.write(head)
            async for part in _pieces(body):
                self.transport.write(part)
                while not (self._may_write or self._is_answered):
                    await self._woken(until_s)
                if self._is_answered:
                    return
        self._is_sent = True

    async def read_head(self, until_s: float | None = None, *, with_part: bool = False) -> None:
        """``with_part``: waits for some of a success's body too, which saves a wake-up. Raises
        ``httpx2.TransportError``, ``TimeoutError``."""
        self._awaits_part = with_part
        answer = self._answer
        while not answer.has_head or self._has_head_alone:
            await self._more(until_s)
        self._awaits_part = False
        self.status = answer.status
        self.headers = {name.decode(): value.decode("latin-1") for name, value in answer.headers}

    async def next_part(self, until_s: float | None = None) -> bytes | None:
        """Raises ``httpx2.TransportError``, ``TimeoutError``."""
        answer = self._answer
        while not (part := answer.take()):
            if answer.is_complete:
                return None
            await self._more(until_s)
        self._last_part_s = self._loop.time()
        self.transport.resume_reading()
        return part

    async def parts(self) -> AsyncIterator[bytes]:
        """Raises ``httpx2.TransportError``."""
        while (part := await self.next_part()) is not None:
            yield part

    def abort(self) -> None:
        self.transport.abort()

    @property
    def _is_answered(self) -> bool:
        return self._answer.has_head or bool(self._answer.fault)

    @property
    def _has_head_alone(self) -> bool:
        answer = self._answer
        is_open = self._awaits_part and not answer.is_complete and not answer.fault
        return is_open and answer.status in (0, OK) and not answer.num_unread_bytes

    async def _more(self, until_s: float | None) -> None:
        if fault := self._answer.fault:
            raise httpx2.RemoteProtocolError(fault)
        await self._woken(until_s)

    async def _woken(self, until_s: float | None) -> None:
        self._waiter = self._loop.create_future()
        try:
            async with asyncio.timeout_at(until_s):
                await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def _pieces(body: bytes | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    if isinstance(body, bytes):
        for start in range(0, len(body), WRITE_BYTES):
            yield body[start : start + WRITE_BYTES]
        return
    async for part in body:
        yield part
