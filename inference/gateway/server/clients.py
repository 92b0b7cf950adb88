"""The HTTP connections of clients: one, and all that are open. Belongs to Twisted's reactor.

Twisted closes a connection without a word when a line is too long, and answers other bad requests
with an empty 400. Here the client gets an error in the dialect of the path, and one that is too
slow to send its request a 408.

waiting ─first byte─▶ head ─complete─▶ body ─complete─▶ answering ─answered─▶ waiting
 idle_s                head_s           body_s, again with every MIN_BODY_BYTES,   no deadline
                                        and MAX_BODY_S altogether

Loopback and trusted proxies are not counted by address: many clients may be behind them.
"""

from __future__ import annotations

import enum
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import daphne.server  # noqa: F401 -- before anything of Twisted: it installs asyncio's reactor
from twisted.internet import reactor
from twisted.internet.tcp import Connection, Port
from twisted.web.http import HTTPChannel

from helexa_site.addresses import client_address, counted_address
from inference.descriptors import DescriptorMarks
from inference.logs import ThrottledLog
from inference.protocol.refusals import OVERLOADED
from inference.settings.setting import Network
from inference.wire.dialect import request_id_headers
from inference.wire.error_envelopes import error_headers
from inference.wire.errors import (
    ApiError,
    HeadersTooLargeError,
    InvalidHttpError,
    RequestTimeoutError,
    ServiceUnavailableError,
    TargetTooLongError,
    TooManyConnectionsError,
)

logger = logging.getLogger(__name__)

MIN_BODY_BYTES = 4096
MAX_BODY_S = 3600.0


class Reading(enum.Enum):
    WAITING = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()
    ANSWERING = enum.auto()


ReadTimeouts = Mapping[Reading, float]
"""In seconds; what is not named has no end."""


class ReadDeadline:
    def __init__(self, timeouts: ReadTimeouts, now_s: float) -> None:
        self._timeouts = timeouts
        self._body_ends_s = math.inf
        self.begin(Reading.WAITING, now_s)

    def begin(self, reading: Reading, now_s: float = 0.0) -> None:
        timeout_s = self._timeouts.get(reading, math.inf)
        if reading is Reading.BODY:
            self._body_ends_s = now_s + max(MAX_BODY_S, timeout_s)
        self.reading = reading
        self._num_bytes = 0
        self._due_s = now_s + timeout_s

    def receive(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes

    def is_overdue(self, now_s: float) -> bool:
        if now_s < self._due_s:
            return False
        continues = self.reading is Reading.BODY and self._num_bytes >= MIN_BODY_BYTES
        if not continues or now_s >= self._body_ends_s:
            return True
        self._num_bytes = 0
        self._due_s = min(now_s + self._timeouts[Reading.BODY], self._body_ends_s)
        return False


Headers = Sequence[tuple[bytes, bytes]]

LINGER_S = 5.0
ENDLESS: ReadTimeouts = {}


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
            self.deadline.begin(Reading.HEAD, time.monotonic())
        super().dataReceived(data)

    def allContentReceived(self) -> None:  # noqa: N802
        self.deadline.begin(Reading.ANSWERING)
        super().allContentReceived()

    def requestDone(self, request: Any) -> None:  # noqa: N802
        """Receives again from in here: the next request may have come already."""
        self.deadline.begin(Reading.WAITING, time.monotonic())
        super().requestDone(request)

    def close_overdue(self) -> None:
        reading = self.deadline.reading
        self.deadline.begin(Reading.ANSWERING)
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
        self.deadline.begin(Reading.ANSWERING)
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
        self.deadline.begin(Reading.BODY, time.monotonic())
        if self.refusal is not None:
            self.requests[-1].refuse(self.refusal)
        super().allHeadersReceived()

    def _send100Continue(self) -> None:  # noqa: N802
        if not self._is_refused:
            super()._send100Continue()

    def lineLengthExceeded(self, line: bytes) -> None:  # noqa: N802
        if hasattr(self, "_path"):
            self._refuse_head(HeadersTooLargeError(self.totalHeadersSize, "bytes"))
            return
        self._path = line.partition(b" ")[2].partition(b" ")[0]
        self._refuse_head(TargetTooLongError(self.totalHeadersSize))

    def _respondToBadRequestAndDisconnect(self) -> None:  # noqa: N802
        if self._receivedHeaderSize > self.totalHeadersSize:
            self._refuse_head(HeadersTooLargeError(self.totalHeadersSize, "bytes"))
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
    """Twisted sends in its loop's next round, which costs a streamed token 10 to 20 % more."""
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


ACCEPTS_A_TURN = 8
"""Twisted accepts a hundred at a time, more than the reserve of file descriptors."""
BACKLOG = 1024
SWEEP_S = 1.0
OVERLOADED_RETRY_AFTER_S = 2.0
REFUSED_TIMEOUTS = dict.fromkeys((Reading.WAITING, Reading.HEAD, Reading.BODY), 2.0)


class BoundedPort(Port):  # type: ignore[misc]
    @property
    def numberAccepts(self) -> int:  # noqa: N802
        return ACCEPTS_A_TURN

    @numberAccepts.setter
    def numberAccepts(self, _wanted: int) -> None:  # noqa: N802
        """Ignored: Twisted adapts it to the load."""


class OpenClients:
    def __init__(
        self,
        *,
        timeouts: ReadTimeouts,
        max_per_address: int,
        trusted_proxies: tuple[Network, ...],
        marks: DescriptorMarks,
        on_refused: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timeouts = timeouts
        self._max_per_address = max_per_address
        self._trusted_proxies = trusted_proxies
        self._marks = marks
        self._on_refused = on_refused
        self._log = ThrottledLog(logger, logging.WARNING, clock=clock)
        self._by_address: Counter[str] = Counter()
        self._channels: dict[Any, tuple[str, StreamChannel]] = {}
        self._ports: list[Port] = []
        self._is_accepting = True

    def listen(self, port: int, host: str, factory: Any) -> None:
        """Raises Twisted's ``CannotListenError``."""
        listening = BoundedPort(port, factory, BACKLOG, host, reactor)
        listening.startListening()
        self._ports.append(listening)
        reactor.callLater(SWEEP_S, self._sweep)

    def stop_listening(self) -> None:
        for port in self._ports:
            port.stopListening()
        self._ports.clear()

    def opened(self, channel: StreamChannel) -> None:
        transport = channel.transport
        host, descriptor = str(transport.getPeer().host), transport.fileno()
        self._channels[transport] = host, channel
        channel.refusal = self.admit(host, descriptor)
        timeouts = self._timeouts if channel.refusal is None else REFUSED_TIMEOUTS
        channel.deadline = ReadDeadline(timeouts, time.monotonic())
        if descriptor >= self._marks.stop_from and self._is_accepting:
            self._is_accepting = False
            for port in self._ports:
                port.stopReading()

    def closed(self, transport: Any) -> None:
        host, _ = self._channels.pop(transport, (None, None))
        if host is None:
            return
        self.release(host)
        if not self._is_accepting:
            self._is_accepting = True
            for port in self._ports:
                port.startReading()

    def admit(self, host: str, descriptor: int) -> ApiError | None:
        address = self._counted(host)
        if address is not None:
            self._by_address[address] += 1
        if descriptor >= self._marks.refuse_from:
            return self._refused(_overloaded(), host, descriptor)
        if address is not None and self._by_address[address] > self._max_per_address:
            return self._refused(TooManyConnectionsError(self._max_per_address), host, descriptor)
        return None

    def release(self, host: str) -> None:
        address = self._counted(host)
        if address is None:
            return
        self._by_address[address] -= 1
        if self._by_address[address] <= 0:
            del self._by_address[address]

    def _counted(self, host: str) -> str | None:
        address = client_address(host, "", ())
        if address.is_loopback or any(address in network for network in self._trusted_proxies):
            return None
        return counted_address(address)

    def _refused(self, error: ApiError, host: str, descriptor: int) -> ApiError:
        self._on_refused(error.code)
        self._log.log(
            error.code,
            f"a connection is refused: {error.code}, of {host} with file descriptor {descriptor} "
            f"of {self._marks.limit}",
        )
        return error

    def _sweep(self) -> None:
        now_s = time.monotonic()
        for _, channel in list(self._channels.values()):
            if channel.deadline.is_overdue(now_s):
                channel.close_overdue()
        reactor.callLater(SWEEP_S, self._sweep)


def _overloaded() -> ServiceUnavailableError:
    return ServiceUnavailableError(
        OVERLOADED,
        "This gateway has as many connections as its file descriptors allow; try again shortly.",
        retry_after_s=OVERLOADED_RETRY_AFTER_S,
    )
