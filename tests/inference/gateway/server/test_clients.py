"""A client's connection: absolute targets, refusals before a body, and writes without delay."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

from twisted.internet.abstract import FileDescriptor
from twisted.internet.main import CONNECTION_LOST
from twisted.internet.tcp import Connection as TcpConnection
from twisted.internet.testing import StringTransport

from inference.gateway.server.clients import (
    LINGER_S,
    MAX_BODY_S,
    MIN_BODY_BYTES,
    ReadDeadline,
    Reading,
    StreamChannel,
)
from inference.gateway.server.daphne_server import SMALL_BODY_BYTES, DaphneServer, StreamRequest
from inference.wire.error_envelopes import anthropic_errors, openai_errors
from inference.wire.errors import ApiError
from inference.wire.failures import FAILURES
from tests.cases import each_case

LIMIT = StreamChannel.totalHeadersSize
REQUEST_ID = "0123456789abcdef"
CHAT, MESSAGES = b"/v1/chat/completions", b"/v1/messages"
ONE_LINE = b"Content-Length: 5"
CHUNKED = b"Transfer-Encoding: chunked"
REACTOR = SimpleNamespace(addWriter=lambda _: None, removeWriter=lambda _: None)
TIMEOUTS = {Reading.HEAD: 10.0, Reading.BODY: 20.0, Reading.WAITING: 75.0}


def test_every_status_has_its_phrase() -> None:
    kinds = [ApiError]
    for one in kinds:
        kinds += one.__subclasses__()
    named = {one.status for one in (*kinds, *FAILURES.values())}
    for status in {200, 204, 206, *named}:
        request = StreamRequest.__new__(StreamRequest)
        request.setResponseCode(status)
        assert request.code_message == HTTPStatus(status).phrase.encode()


def errors_of(target: bytes) -> Any:
    return anthropic_errors if target.startswith(MESSAGES) else openai_errors


HEADS = [
    (b"GET %s?q=" + b"x" * LIMIT + b" HTTP/1.1\r\n", 414, "uri_too_long"),
    (b"GET %s HTTP/1.1\r\nA: " + b"x" * LIMIT + b"\r\n", 431, "headers_too_large"),
    (b"GET %s HTTP/1.1\r\n" + (b"A: " + b"x" * 1000 + b"\r\n") * 20, 431, "headers_too_large"),
    (b"GET %s HTTP/1.1\r\n" + b"A: x\r\n" * 501, 431, "headers_too_large"),
    (b"GET %s HTTP/1.1\r\nno header\r\nA: x\r\n", 400, "invalid_http"),
    (b"POST %s HTTP/1.1\r\nContent-Length: many\r\nA: x\r\n", 400, "invalid_http"),
    # Two lengths, between which a proxy and this server may differ (RFC 9112, 6.3).
    (b"POST %s HTTP/1.1\r\n" + ONE_LINE + b"\r\nContent-Length: 6\r\n", 400, "invalid_http"),
    (b"POST %s HTTP/1.1\r\n" + ONE_LINE + b"\r\n" + CHUNKED + b"\r\n", 400, "invalid_http"),
    (b"POST %s HTTP/1.1\r\n" + CHUNKED + b"\r\n\r\nzz\r\n1\r\n", 400, "invalid_http"),
]


@each_case("piece_bytes", [997, LIMIT * 4])
@each_case(("head", "status", "code"), HEADS)
async def test_a_refused_head(head: bytes, status: int, code: str, piece_bytes: int) -> None:
    for path in (CHAT, MESSAGES):
        served, sent = (
            Served(check_headers=AsyncMock()),
            head % path + b"\r\nGET /next HTTP/1.1\r\n\r\n",
        )
        channel, wire = served.connect()
        for start in range(0, len(sent), piece_bytes):
            channel.dataReceived(sent[start : start + piece_bytes])
        answer, _, body = wire.value().partition(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert b"content-length: %d" % len(body) in answer.lower()
        assert b"connection: close" in answer.lower()
        assert b"x-request-id: " + REQUEST_ID.encode() in answer
        error = json.loads(body)["error"]
        found = error["code"] if path == CHAT else error["details"]["error_code"]
        assert ([one[1] for one in served.recorded], found) == ([status], code)
        assert (served.later, wire.disconnecting) == ([LINGER_S], False)
        asked = [one for one in served.server.connections.values() if "application_instance" in one]
        assert not asked, "nor is what follows"


class Socket(TcpConnection):  # type: ignore[misc]
    """Twisted's TCP transport over a fake socket, which accepts ``takes`` bytes of each send.
    ``None``: the connection is lost."""

    def __init__(self, takes: int | None) -> None:
        FileDescriptor.__init__(self, reactor=REACTOR)
        self.connected = 1
        self.sent = b""
        self._takes = takes

    def writeSomeData(self, data: bytes) -> Any:  # noqa: N802
        if self._takes is None:
            return CONNECTION_LOST
        self.sent += bytes(data[: self._takes])
        return min(self._takes, len(data))

    @property
    def waiting(self) -> bytes:
        return b"".join(self._tempDataBuffer)


def channel_on(socket: Socket) -> StreamChannel:
    channel = StreamChannel()
    channel.transport = socket
    return channel


def test_what_the_socket_does_not_take_at_once_waits() -> None:
    from inference.gateway.server.daphne_server import StreamSocket  # installs Daphne's reactor

    for takes, sent in ((100, b"abcdef"), (4, b"abcd"), (0, b""), (None, b"")):
        socket = Socket(takes)
        channel_on(socket).writeSequence([b"abc", b"def"])
        assert (socket.sent, socket.waiting) == (sent, b"abcdef"[len(sent) :])
    protocol = StreamSocket()
    protocol.transport, protocol.send_queue = framed, _ = Socket(takes=4), deque()
    written = Socket(takes=4)
    for socket, write in ((framed, protocol.sendData), (written, channel_on(written).write)):
        write(b"abc")
        assert (socket.sent, socket.waiting) == (b"abc", b"")
        for piece in (b"defgh", b"ij"):
            write(piece)
        assert (socket.sent, socket.waiting) == (b"abcdefg", b"hij")
    written.doWrite()  # the socket is free
    channel_on(written).write(b"kl")
    assert written.sent == b"abcdefghijkl"
    for disconnecting, connected in ((True, 1), (False, 0)):  # nothing goes past a goodbye
        socket = Socket(takes=100)
        socket.disconnecting, socket.connected = disconnecting, connected
        channel_on(socket).write(b"abc")
        assert socket.sent == b""


class Served:
    """Daphne's server without a port, whose connections are fed by hand."""

    def __init__(self, **attributes: Any) -> None:
        self.later: list[float] = []
        self.recorded: list[tuple[bytes, int, Any]] = []
        self.server = DaphneServer.__new__(DaphneServer)
        self.server.connections = {}
        self.server.clients = SimpleNamespace(opened=lambda _: None, closed=lambda _: None)
        answering = {"errors_of": errors_of, "record_refusal": self._record}
        for name, value in {**answering, **attributes}.items():
            setattr(self.server, name, value)

    def _record(self, target: bytes, _error: ApiError, status: int, *, headers: Any) -> str:
        self.recorded.append((target, status, headers))
        return REQUEST_ID

    def connect(self) -> tuple[StreamChannel, StringTransport]:
        channel, wire = StreamChannel(), StringTransport()
        channel.requestFactory, channel.timeOut = StreamRequest, None
        channel.callLater = lambda seconds, _call: self.later.append(seconds)
        channel.factory = SimpleNamespace(server=self.server, log=lambda _: None)
        channel.makeConnection(wire)
        return channel, wire


async def test_headers_are_checked_before_a_large_body_alone() -> None:
    scopes: list[dict[str, Any]] = []
    check_headers = AsyncMock()

    async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
        scopes.append(scope)

    served = Served(
        application=application,
        check_headers=check_headers,
        root_path="",
        proxy_forwarded_address_header=None,
        request_buffer_size=SMALL_BODY_BYTES * 2,
        max_body_bytes=SMALL_BODY_BYTES * 2,
    )
    for length in (SMALL_BODY_BYTES + 1, 2):
        channel, _ = served.connect()
        head = b"POST %s HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % (CHAT, length)
        channel.dataReceived(head + b"x")
        await asyncio.sleep(0)
        channel.dataReceived(b"x" * (length - 1))
        (request,) = channel.requests
        channel.pauseProducing()  # the client does not read
        assert not request.writable.is_set()
        channel.resumeProducing()
        assert request.writable.is_set()
        running = [each["application_instance"] for each in served.server.connections.values()]
        await asyncio.gather(*running)
    assert len(scopes) == 2
    assert [one.args[0] for one in check_headers.await_args_list] == [CHAT]


@each_case(
    ("length", "body"),
    [
        (b"Content-Length: 5\r\nExpect: 100-continue", b"xxxxx"),
        (b"Transfer-Encoding: chunked", b"5\r\nxxxxx\r\n0\r\n\r\n"),
    ],
)
async def test_a_refused_body_is_recorded_with_its_headers(length: bytes, body: bytes) -> None:
    """The server refuses a declared length, which it does not ask for, and a body without one once
    too much has come."""
    served = Served(max_body_bytes=4)
    channel, wire = served.connect()
    head = b"POST %s HTTP/1.1\r\nHost: h\r\nX-Api-Key: k\r\n%s\r\n\r\n" % (CHAT, length)
    channel.dataReceived(head + body)
    assert wire.value().startswith(b"HTTP/1.1 413 ")
    ((target, status, headers),) = served.recorded
    assert (target, status, dict(headers)[b"x-api-key"]) == (CHAT, 413, b"k")


def test_deadlines_of_heads_and_bodies() -> None:
    deadline = ReadDeadline(TIMEOUTS, 0)
    assert not deadline.is_overdue(74.9) and deadline.is_overdue(75)
    deadline.begin(Reading.HEAD, 100)
    deadline.receive(MIN_BODY_BYTES)
    assert not deadline.is_overdue(109.9) and deadline.is_overdue(110)
    deadline.begin(Reading.ANSWERING)
    assert deadline.reading is Reading.ANSWERING
    assert not deadline.is_overdue(1e9)
    deadline.begin(Reading.WAITING, 1000)
    assert not deadline.is_overdue(1074) and deadline.is_overdue(1075)
    # A body of 4 KiB each 20 s took without end.
    deadline = ReadDeadline(TIMEOUTS, 0)
    deadline.begin(Reading.BODY, 0)
    num_periods = round(MAX_BODY_S / TIMEOUTS[Reading.BODY])
    for period in range(1, num_periods + 1):
        deadline.receive(MIN_BODY_BYTES)
        assert not deadline.is_overdue(20 * period - 0.1)
        assert deadline.is_overdue(20 * period) == (period == num_periods)
    deadline.begin(Reading.BODY, 0)
    deadline.receive(MIN_BODY_BYTES - 1)
    assert deadline.is_overdue(20)
