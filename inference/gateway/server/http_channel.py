"""The HTTP connection of a client: refuses bad heads, reads absolute targets, writes without delay.
A client that is too slow to send its request gets a 408.

Twisted closes a connection without a word when a line is too long, and answers other bad requests
with an empty 400. Here the client gets an error in the dialect of the path.

A ``ReadDeadline`` is the moment by which a client must have sent more of its request; times are its
arguments.

waiting ─first byte─▶ head ─complete─▶ body ─complete─▶ answering ─answered─▶ waiting
 idle_s                head_s           body_s, again with every MIN_BODY_BYTES,   no deadline
                                        and MAX_BODY_S altogether
"""

from __future__ import annotations

import enum
import math
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from twisted.internet.tcp import Connection
from twisted.web.http import HTTPChannel

from inference.wire.dialect import error_headers, request_id_headers
from inference.wire.errors import (
    ApiError,
    HeadersTooLargeError,
    InvalidHttpError,
    RequestTimeoutError,
    TargetTooLongError,
)

MIN_BODY_BYTES = 4096
MAX_BODY_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTimeouts:
    head_s: float
    """The time from the first byte of a request until its head is complete."""
    body_s: float
    idle_s: float


class Reading(enum.Enum):
    WAITING = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()
    ANSWERING = enum.auto()


class ReadDeadline:
    def __init__(self, timeouts: ReadTimeouts, now_s: float) -> None:
        self._timeouts = timeouts
        self.wait(now_s)

    def wait(self, now_s: float) -> None:
        self.reading = Reading.WAITING
        self._num_bytes = 0
        self._body_left_s = max(MAX_BODY_S, self._timeouts.body_s)
        self._read_from_s = now_s
        self._due_s = now_s + self._timeouts.idle_s

    def begin_head(self, now_s: float) -> None:
        self.reading = Reading.HEAD
        self._body_left_s = max(MAX_BODY_S, self._timeouts.body_s)
        self._due_s = now_s + self._timeouts.head_s

    def begin_body(self, now_s: float) -> None:
        self.reading = Reading.BODY
        self._num_bytes = 0
        self._read_from_s = now_s
        self._due_s = now_s + min(self._timeouts.body_s, self._body_left_s)

    def receive(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes

    def stop(self) -> None:
        self.reading = Reading.ANSWERING
        self._due_s = math.inf

    def is_overdue(self, now_s: float) -> bool:
        """Begins the next period of a body that has brought enough in the last one."""
        if now_s < self._due_s:
            return False
        if self.reading is Reading.BODY and self._num_bytes >= MIN_BODY_BYTES:
            self._body_left_s -= now_s - self._read_from_s
            self.begin_body(now_s)
            return self._body_left_s <= 0
        return True


Headers = Sequence[tuple[bytes, bytes]]

LINGER_S = 5.0
ENDLESS = ReadTimeouts(head_s=math.inf, body_s=math.inf, idle_s=math.inf)
ABSOLUTE_TARGET = re.compile(rb"https?://([^/?#@]+)([/?][^#]*)?", re.IGNORECASE)
"""The authority, and the rest: RFC 9112, section 3.2.2."""


def origin_target(target: bytes) -> tuple[bytes, bytes] | None:
    found = ABSOLUTE_TARGET.fullmatch(target)
    if found is None:
        return None
    host, rest = found[1], found[2] or b""
    return host, rest if rest.startswith(b"/") else b"/" + rest


class StreamChannel(HTTPChannel):  # type: ignore[misc]
    _path: bytes
    """Twisted's name for the target of the request whose head is being read."""
    _is_refused = False
    _drops_input = False
    refusal: ApiError | None = None

    def __init__(self) -> None:
        super().__init__()
        self.deadline = ReadDeadline(ENDLESS, time.monotonic())

    def connectionMade(self) -> None:  # noqa: N802
        super().connectionMade()
        self.factory.server.clients.opened(self)

    def connectionLost(self, reason: Any) -> None:  # noqa: N802
        super().connectionLost(reason)
        self.factory.server.clients.closed(self.transport)

    def dataReceived(self, data: bytes) -> None:  # noqa: N802
        if self._drops_input:
            return
        if self.deadline.reading is Reading.BODY:
            self.deadline.receive(len(data))
        elif self.deadline.reading is Reading.WAITING:
            self.deadline.begin_head(time.monotonic())
        super().dataReceived(data)

    def allContentReceived(self) -> None:  # noqa: N802
        self.deadline.stop()
        super().allContentReceived()

    def requestDone(self, request: Any) -> None:  # noqa: N802
        """Receives again from in here: the next request may have come already."""
        self.deadline.wait(time.monotonic())
        super().requestDone(request)

    def close_overdue(self) -> None:
        reading = self.deadline.reading
        self.deadline.stop()
        if self.refusal is not None:
            self._refuse_head(self.refusal)
        elif reading is Reading.HEAD:
            self._refuse_head(RequestTimeoutError("head"))
        elif reading is Reading.BODY:
            self.requests[-1].refuse(RequestTimeoutError("body"))
        else:
            self.loseConnection()
            self.callLater(LINGER_S, self.forceAbortClient)

    def write(self, data: bytes) -> None:
        write_at_once(self.transport, data)

    def writeSequence(self, pieces: Iterable[bytes]) -> None:  # noqa: N802
        self.write(b"".join(pieces))

    def refuse(self, error: ApiError, target: bytes, headers: Headers = ()) -> None:
        if self._is_refused:
            return
        self._is_refused = True
        self.deadline.stop()
        server = self.factory.server
        request_id = server.record_refusal(target, error, error.status, headers=headers)
        body = server.errors_of(target).error_body(error, request_id=request_id)
        named = (*error_headers(error), *request_id_headers(request_id))
        answered = b"".join(b"%s: %s\r\n" % header for header in named)
        self.transport.write(
            b"HTTP/1.1 %d %s\r\nContent-Type: application/json\r\n%s"
            b"Connection: close\r\nContent-Length: %d\r\n\r\n"
            % (error.status, HTTPStatus(error.status).phrase.encode(), answered, len(body))
            + body
        )
        self.callLater(LINGER_S, self.forceAbortClient)

    def allHeadersReceived(self) -> None:  # noqa: N802
        """An absolute target's host overrides the header."""
        if (origin := origin_target(self._path)) is not None:
            host, self._path = origin
            self.requests[-1].requestHeaders.setRawHeaders(b"Host", [host])
        self.deadline.begin_body(time.monotonic())
        if self.refusal is not None:
            self.requests[-1].refuse(self.refusal)
        super().allHeadersReceived()

    def _send100Continue(self) -> None:  # noqa: N802
        if not self._is_refused:
            super()._send100Continue()

    def lineLengthExceeded(self, line: bytes) -> None:  # noqa: N802
        if hasattr(self, "_path"):
            self._refuse_head(HeadersTooLargeError(self.totalHeadersSize))
            return
        self._path = line.partition(b" ")[2].partition(b" ")[0]
        self._refuse_head(TargetTooLongError(self.totalHeadersSize))

    def _respondToBadRequestAndDisconnect(self) -> None:  # noqa: N802
        if self._receivedHeaderSize > self.totalHeadersSize:
            self._refuse_head(HeadersTooLargeError(self.totalHeadersSize))
        elif self._receivedHeaderCount > self.maxHeaders:
            self._refuse_head(HeadersTooLargeError(self.maxHeaders, "header fields"))
        else:
            self._refuse_head(InvalidHttpError("This is no HTTP/1.1 request that can be read."))

    def _refuse_head(self, error: ApiError) -> None:
        """Bytes after it cannot be split into requests: all further input is dropped."""
        self.clearLineBuffer()
        self._drops_input = True
        self.refuse(error, getattr(self, "_path", b"/"))


def write_at_once(transport: Any, data: bytes) -> None:
    """Sends to the socket at once and buffers the rest. Twisted buffers first and sends in the next
    round of its loop, which costs a streamed token 10 to 20 % more."""
    num_sent = transport.writeSomeData(data) if _can_send_now(transport) else 0
    if not isinstance(num_sent, int):
        num_sent = 0  # The connection is lost: Twisted sees that when it sends the buffer.
    if num_sent < len(data):
        transport.write(data[num_sent:])


def _can_send_now(transport: Any) -> bool:
    return (
        isinstance(transport, Connection)
        and bool(transport.connected)
        and not transport.disconnecting
        and not transport.dataBuffer
        and not transport._tempDataLen
    )
