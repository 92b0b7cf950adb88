"""One HTTP/1.1 connection to an upstream, as an asyncio protocol.

    opened ─▶ send_request ─▶ head ─▶ next_part ─▶ finish ─┬▶ the next request
                                                          └▶ abort

    RequestWriter: head ─▶ part … ─▶ end
    AnswerParser:  begin ─▶ feed … ─▶ has_head ─▶ take … ─▶ is_complete      feed_eof: no more comes

llhttp parses, which is strict: no bare line feeds, no two lengths, no length beside chunks.

Received bytes are parsed when they are read, and no more than ``MAX_UNREAD_BYTES`` wait here. One
timer bounds all waits of a request. Errors are httpx2's. Must not know the requests.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator

import httptools
import httpx2

MAX_HEAD_BYTES = 64 * 1024
"""The most bytes of an answer that may come without any of its body: its head, extensions of chunks
and trailers."""
FIRST_FINAL = 200
NO_BODY = frozenset({204, 304})
CONTENT_LENGTH, TRANSFER_ENCODING, CHUNKED = b"content-length", b"transfer-encoding", b"chunked"
NAME = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
TARGET = re.compile(rb"[\x21-\x7e]+")

Headers = list[tuple[bytes, bytes]]


class RequestWriter:
    def __init__(self, method: bytes, target: bytes, headers: Headers) -> None:
        if not TARGET.fullmatch(target):
            raise httpx2.LocalProtocolError("A request's target has an illegal character.")
        self._left_bytes = 0
        self._is_chunked = False
        lines = [b"%s %s HTTP/1.1" % (method, target)]
        for name, value in headers:
            if not NAME.fullmatch(name) or not VALUE.fullmatch(value):
                raise httpx2.LocalProtocolError("A header has an illegal character.")
            lines.append(b"%s: %s" % (name, value))
            if name.lower() == CONTENT_LENGTH:
                self._left_bytes = int(value)
            elif name.lower() == TRANSFER_ENCODING:
                self._is_chunked = True
        self.head = b"\r\n".join((*lines, b"", b""))

    def part(self, data: bytes) -> bytes:
        if self._is_chunked:
            return b"%x\r\n%s\r\n" % (len(data), data)
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            raise httpx2.LocalProtocolError("A body is longer than its declared length.")
        return data

    def end(self) -> bytes:
        if self._is_chunked:
            return b"0\r\n\r\n"
        if self._left_bytes:
            raise httpx2.LocalProtocolError("A body is shorter than its declared length.")
        return b""


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

    def feed(self, data: bytes) -> None:
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

    @property
    def has_part(self) -> bool:
        return bool(self._body)

    def take(self) -> bytes:
        body = self._body
        if not body:
            return b""
        taken = body[0] if len(body) == 1 else b"".join(body)
        body.clear()
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

    def on_message_complete(self) -> None:
        self.is_complete = self.has_head

    def _refuse(self, why: str) -> None:
        """Bytes behind a complete answer only keep its connection from being reused."""
        self.keeps_alive = False
        if not self.is_complete:
            self.fault = self.fault or why


MAX_UNREAD_BYTES = 64 * 1024
WRITE_BYTES = 256 * 1024
"""A body is written in pieces of this size: the transport copies what the socket does not take at
once."""
GATHER_S = 0.02
"""Tokens within this time of the last ones are given together: each wake-up costs as much as ten
tokens."""
OK = 200
LAST_CHUNK = b"0\r\n\r\n"


class UpstreamConnection(asyncio.Protocol):
    """One request at a time. Belongs to one event loop. ``until_s``: a wait raises ``TimeoutError``
    after this time of its clock; ``None``: no limit."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._answer = AnswerParser()
        self._transport: asyncio.Transport | None = None
        self._unread: deque[bytes] = deque()
        self._num_unread_bytes = 0
        self._is_paused = False
        self._has_ended = False
        self._is_lost = False
        self._may_write = True
        self._is_sent = False
        self._waiter: asyncio.Future[None] | None = None
        self._until_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._gathering: asyncio.TimerHandle | None = None
        self._awaits_part = False
        self._has_given = False
        self._last_part_s = 0.0
        self.gathers = False
        self.idle_since_s = 0.0

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._unread.append(data)
        self._num_unread_bytes += len(data)
        if self._num_unread_bytes > MAX_UNREAD_BYTES and self._transport is not None:
            self._transport.pause_reading()
            self._is_paused = True
        if not self._waits_for_more(data):
            self._wake()

    def eof_received(self) -> None:
        self._has_ended = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_ended = self._is_lost = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake()

    def pause_writing(self) -> None:
        self._may_write = False

    def resume_writing(self) -> None:
        self._may_write = True
        self._wake()

    # Called for a request.

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None, "a connection that is not made"
        return self._transport

    @property
    def is_complete(self) -> bool:
        return self._answer.is_complete

    @property
    def is_reusable(self) -> bool:
        return not self._unread and not self._has_ended and not self.transport.is_closing()

    def tunnelled(self, transport: asyncio.Transport) -> None:
        self._transport = transport
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
        self._is_sent = False
        self._answer.begin()
        writer = RequestWriter(method, target, headers)
        if isinstance(body, bytes) and len(body) <= WRITE_BYTES:
            self._write(b"%s%s%s" % (writer.head, writer.part(body) if body else b"", writer.end()))
        else:
            self._write(writer.head)
            async for part in _one(body) if isinstance(body, bytes) else body:
                if not await self._send_part(writer, part, until_s):
                    return
            self._write(writer.end())
        self._is_sent = True

    async def head(
        self, until_s: float | None = None, *, with_part: bool = False
    ) -> tuple[int, Headers]:
        """The status and headers of the answer, names in lower case. ``with_part``: waits for some
        of a success's body too, which saves a wake-up. Raises ``httpx2.TransportError``,
        ``TimeoutError``."""
        self._awaits_part = with_part
        answer = self._answer
        while True:
            self._parse()
            if answer.has_head and not self._has_head_alone:
                self._awaits_part = False
                return answer.status, answer.headers
            await self._more(until_s)

    async def next_part(self, until_s: float | None = None) -> bytes | None:
        """Raises ``httpx2.TransportError``, ``TimeoutError``."""
        if self._has_given:
            self._has_given, self._last_part_s = False, self._loop.time()
        answer = self._answer
        while True:
            self._parse()
            if part := answer.take():
                self._has_given = True
                return part
            if answer.is_complete:
                return None
            await self._more(until_s)

    async def parts(self) -> AsyncIterator[bytes]:
        """Raises ``httpx2.TransportError``."""
        while (part := await self.next_part()) is not None:
            yield part

    def finish(self) -> bool:
        self.gathers = self._has_given = False
        answer = self._answer
        return self._is_sent and answer.is_complete and answer.keeps_alive and self.is_reusable

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def _send_part(self, writer: RequestWriter, part: bytes, until_s: float | None) -> bool:
        for start in range(0, len(part), WRITE_BYTES):
            self._write(writer.part(part[start : start + WRITE_BYTES]))
            while not self._may_write and not self._unread and not self._has_ended:
                await self._woken(until_s)
            if self._unread or self._has_ended:
                return False
        return True

    def _write(self, data: bytes) -> None:
        if data and not self._is_lost:
            self.transport.write(data)

    def _parse(self) -> None:
        answer = self._answer
        while self._unread and not answer.is_complete and not answer.fault:
            answer.feed(self._read())
        if self._has_ended and not self._unread:
            answer.feed_eof()

    @property
    def _has_head_alone(self) -> bool:
        answer = self._answer
        is_open = self._awaits_part and not answer.is_complete and not answer.fault
        return is_open and answer.status == OK and not answer.has_part

    def _read(self) -> bytes:
        data = self._unread.popleft()
        self._num_unread_bytes -= len(data)
        if self._is_paused and not self._unread:
            self._is_paused = False
            self.transport.resume_reading()
        return data

    async def _more(self, until_s: float | None) -> None:
        if fault := self._answer.fault:
            raise httpx2.RemoteProtocolError(fault)
        await self._woken(until_s)

    def _waits_for_more(self, data: bytes) -> bool:
        if self._awaits_part:
            self._parse()
            return self._has_head_alone
        if not self.gathers or self._is_paused or data.endswith(LAST_CHUNK):
            return False
        if self._gathering is None:
            due_s = self._last_part_s + GATHER_S
            if self._loop.time() >= due_s:
                return False
            self._gathering = self._loop.call_at(due_s, self._wake)
        return True

    async def _woken(self, until_s: float | None) -> None:
        self._until_s = until_s
        if until_s is not None and (self._timer is None or self._timer.when() > until_s):
            self._set_timer(until_s)
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _set_timer(self, when_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when_s, self._on_timer)

    def _on_timer(self) -> None:
        """Ends a wait that has timed out. The timer is not moved for each wait or request: it is
        set again here for a longer wait."""
        self._timer = None
        if self._waiter is None or self._waiter.done() or self._until_s is None:
            return
        if self._loop.time() < self._until_s:
            self._set_timer(self._until_s)
        else:
            self._waiter.set_exception(TimeoutError())


async def _one(body: bytes) -> AsyncIterator[bytes]:
    yield body
