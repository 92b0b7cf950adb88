"""Connections to upstreams over real sockets: used again, secured, through proxies, bounded."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx2
import pytest

from inference.gateway.upstreams import transport as transport_module
from inference.gateway.upstreams.connection import (
    MAX_HEAD_BYTES,
    MAX_UNREAD_BYTES,
    AnswerParser,
    Headers,
    UpstreamConnection,
    request_head,
)
from inference.gateway.upstreams.transport import UpstreamTransport
from tests.cases import each_case
from tests.inference.gateway.bodies import until
from tests.live.fleets.certificates import Authority
from tests.servers.fake_upstream import Answer, Asked, FakeUpstream, Wire

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
EMPTY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
PATIENCE_S = 60.0
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@asynccontextmanager
async def serving(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    server = await asyncio.start_server(handler, "127.0.0.1", 0, ssl=tls)
    with closing(server):
        yield server.sockets[0].getsockname()[1]


@asynccontextmanager
async def transport_of(
    context: ssl.SSLContext | None = None, proxy: str = ""
) -> AsyncIterator[UpstreamTransport]:
    trusted = context or ssl.create_default_context()
    made = UpstreamTransport(trusted, proxy=proxy, connect_timeout_s=PATIENCE_S)
    with closing(made):
        yield made


@asynccontextmanager
async def connecting(answer: Answer) -> AsyncIterator[tuple[UpstreamTransport, FakeUpstream]]:
    with FakeUpstream() as upstream:
        upstream.answer = answer
        async with transport_of() as transport:
            yield transport, upstream


async def ask(
    transport: UpstreamTransport, url: str, body: bytes = b"{}", **more: Any
) -> UpstreamConnection:
    """The answer's head."""
    asked = httpx2.URL(url)
    headers = [(b"host", asked.netloc), (b"content-length", b"%d" % len(body))]
    return await transport.send(b"POST", asked, headers, body, **more)


async def read(transport: UpstreamTransport, response: UpstreamConnection) -> bytes:
    """The whole body."""
    try:
        return b"".join([part async for part in response.parts()])
    finally:
        transport.free(response)


async def test_connections_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless one was closed, left or grew old."""
    hung_up = threading.Event()

    def twice(asked: Asked, wire: Wire) -> None:
        wire.send(EMPTY)
        wire.keeps = len(upstream.asked) % 2 == 1

    def leaves(asked: Asked, wire: Wire) -> None:
        wire.begin_stream()
        if wire.wait_for_hang_up():
            hung_up.set()

    async with connecting(twice) as (transport, upstream):
        for number in range(3):
            assert (await read(transport, await ask(transport, upstream.url))) == b""
            if number == 1:  # the close that nothing announces has come
                await until(lambda: not any(one.is_reusable for one in transport._idle))
        assert upstream.num_connections == 2
        monkeypatch.setattr(transport_module, "KEEP_ALIVE_S", 0.0)
        await read(transport, await ask(transport, upstream.url))
        assert upstream.num_connections == 3
        upstream.answer = leaves
        transport.free(await ask(transport, upstream.url))
        assert await asyncio.to_thread(hung_up.wait, PATIENCE_S)


async def proxying(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """A proxy that connects to this host alone. The request's head."""
    head = await reader.readuntil(b"\r\n\r\n")
    method, target, _ = head.split(b" ", 2)
    host, _, port = target.partition(b":")
    if method != b"CONNECT":
        writer.write(EMPTY)
    elif host != b"127.0.0.1":
        writer.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n")
    else:
        far_reader, far_writer = await asyncio.open_connection(host.decode(), int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        asyncio.gather(copied(reader, far_writer), copied(far_reader, writer))
    return head


async def copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while part := await reader.read(65536):
        writer.write(part)
    writer.close()


async def test_a_private_authority_and_a_proxy(tmp_path: Path) -> None:
    authority = Authority("private")
    chain, key = authority.vouch("127.0.0.1", tmp_path / "server")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(chain, key)
    trusting = ssl.create_default_context(cadata=authority.pem)
    seen: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await proxying(reader, writer))

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(EMPTY)
        writer.close()

    async with serving(proxy) as proxy_port, serving(server, tls) as port:
        url = f"https://127.0.0.1:{port}/v1/x"
        async with transport_of(context=trusting) as transport:
            assert (await ask(transport, url)).status == 200
        async with transport_of() as transport:
            with pytest.raises(httpx2.ConnectError):
                await ask(transport, url)
        address = f"http://127.0.0.1:{proxy_port}"
        async with transport_of(context=trusting, proxy=address) as transport:
            assert (await ask(transport, "http://nowhere.test/v1/x")).status == 200
            assert seen[-1].startswith(b"POST http://nowhere.test/v1/x HTTP/1.1\r\n")
            assert (await ask(transport, url)).status == 200
            assert seen[-1].startswith(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n" % port)
            assert b"v1/x" not in seen[-1]
            with pytest.raises(httpx2.ProxyError, match="403"):
                await ask(transport, "https://forbidden.test/")
        async with transport_of(proxy="http://127.0.0.1:9") as transport:
            with pytest.raises(httpx2.ConnectError):
                await ask(transport, "http://nowhere.test/")


async def test_a_large_body_is_sent_whole_or_refused_and_its_answer_may_stay_unread() -> None:
    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nbig")
        await asyncio.Event().wait()

    async with serving(refuses) as port, transport_of() as transport, asyncio.timeout(PATIENCE_S):
        response = await ask(transport, f"http://127.0.0.1:{port}/", b"x" * 64 * 1024 * 1024)
        assert (response.status, await read(transport, response)) == (413, b"big")
    body, large = b"x" * 2 * MAX_UNREAD_BYTES, b"x" * 8 * 1024 * 1024

    def fails(asked: Asked, wire: Wire) -> None:
        wire.whole(500, body, "text/plain")

    async with connecting(fails) as (transport, upstream), asyncio.timeout(PATIENCE_S):
        for _ in range(3):
            response = await ask(transport, upstream.url, large)
            await asyncio.sleep(0.05)  # all of it may have come
            transport.free(response)
        assert await read(transport, await ask(transport, upstream.url)) == body
        assert upstream.asked[0].body == large


async def test_no_more_is_read_than_is_taken() -> None:
    kernel, connection = Mock(spec=asyncio.Transport), UpstreamConnection()
    connection.connection_made(kernel)
    await connection.send_request(b"GET", b"/", [], b"")
    full = b"%x\r\n%s\r\n" % (MAX_UNREAD_BYTES, b"x" * MAX_UNREAD_BYTES)
    connection.data_received(CHUNKED + full)
    kernel.pause_reading.assert_not_called()
    connection.data_received(b"1\r\nx\r\n")
    kernel.pause_reading.assert_called_once_with()
    kernel.resume_reading.assert_not_called()
    assert len(await connection.next_part() or b"") == MAX_UNREAD_BYTES + 1
    kernel.resume_reading.assert_called_once_with()


async def test_what_comes_before_a_break_is_given_and_what_comes_behind_an_answer_is_not() -> None:
    def breaks(asked: Asked, wire: Wire) -> None:
        wire.begin_stream()
        wire.part(b"hello")
        wire.keeps = False

    async with connecting(breaks) as (transport, upstream):
        response = await ask(transport, upstream.url)
        await asyncio.sleep(0.05)  # the end has come too when the body is read
        parts = response.parts()
        assert await anext(parts) == b"hello"
        with pytest.raises(httpx2.RemoteProtocolError):
            await anext(parts)
        transport.free(response)
        upstream.answer = lambda asked, wire: wire.send(EMPTY + LENGTH + b"forge")
        for _ in range(2):
            assert (await read(transport, await ask(transport, upstream.url))) == b""
        assert upstream.num_connections == 3


async def test_each_wait_of_a_request_is_bounded_by_its_own_time() -> None:
    goes_on = threading.Event()

    def slow(asked: Asked, wire: Wire) -> None:
        if upstream.asked[1:]:
            assert wire.wait_for_hang_up()
            return
        wire.begin_stream()
        wire.part(b"a")
        assert goes_on.wait(PATIENCE_S)
        wire.part(b"b")
        wire.end_stream(b"")

    loop = asyncio.get_running_loop()
    async with connecting(slow) as (transport, upstream):
        far_s = loop.time() + PATIENCE_S
        answer = await ask(transport, upstream.url, with_part=True, until_s=far_s)
        assert await answer.next_part(far_s) == b"a"
        for until_s in (loop.time() + 0.05, loop.time() - 1):
            with pytest.raises(TimeoutError):
                await answer.next_part(until_s)
        loop.call_later(0.2, goes_on.set)
        assert await answer.next_part(far_s) == b"b", "the earlier times are over"
        assert await answer.next_part(far_s) is None
        transport.free(answer)
        with pytest.raises(TimeoutError):
            await ask(transport, upstream.url, with_part=True, until_s=loop.time() + 0.05)
        assert not transport._open


async def test_the_end_of_a_left_answer_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = True

    def answers(asked: Asked, wire: Wire) -> None:
        wire.begin_stream()
        wire.part(b"a")
        threading.Event().wait(0.05)
        if ends:
            wire.end_stream(b"")
        else:
            wire.wait_for_hang_up()

    async with connecting(answers) as (transport, upstream):
        for ends, timeout_s in ((True, PATIENCE_S), (True, PATIENCE_S), (False, 0.01)):
            monkeypatch.setattr(transport_module, "DRAIN_TIMEOUT_S", timeout_s)
            answer = await ask(transport, upstream.url, with_part=True)
            assert await answer.next_part(None) == b"a"
            transport.free_drained(answer)
            await until(lambda: not transport._open)
            assert (upstream.num_connections, bool(transport._idle)) == (1, ends)


LENGTH = OK + b"content-length: 5\r\n\r\n"
WHOLE = {
    "chunks": (CHUNKED + b"2\r\nhe\r\n3;ext=1\r\nllo\r\n0\r\ntrailer: x\r\n\r\n", True),
    "a length": (LENGTH + b"hello", True),
    "until it closes": (OK + b"\r\nhello", False),
    "closing": (OK + b"connection: close\r\ncontent-length: 5\r\n\r\nhello", False),
    "1.0": (b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello", False),
    "informed first": (b"HTTP/1.1 103 Hints\r\nlink: x\r\n\r\n" + LENGTH + b"hello", True),
}


def fed(data: bytes, *, by_byte: bool = False) -> tuple[AnswerParser, bytes]:
    """A large head comes in pieces of some more bytes."""
    parser, body = AnswerParser(), b""
    size = len(data) + 1 if not by_byte else 1 if len(data) < 1000 else 997
    for at in range(0, len(data), size):
        parser.feed(data[at : at + size])
        body += parser.take()
        if parser.fault:
            break
    return parser, body


@each_case("by_byte", [False, True])
@each_case(("data", "keeps_alive"), WHOLE.values(), ids=WHOLE)
def test_an_answer_is_read_however_it_is_cut(data: bytes, keeps_alive: bool, by_byte: bool) -> None:
    parser, body = fed(data, by_byte=by_byte)
    assert (parser.status, body, parser.keeps_alive) == (200, b"hello", keeps_alive)
    assert not any(name in (b"link", b"trailer") for name, _ in parser.headers)
    parser.feed_eof()
    assert parser.is_complete and not parser.fault and not parser.keeps_alive
    parser, _ = fed(CHUNKED + b"2\r\nhe\r\n0\r\n\r\n")
    parser.begin()
    assert (parser.status, parser.headers, parser.is_complete) == (0, [], False)
    parser.feed(b"HTTP/1.1 404 No\r\nA: \r\nContent-Length: 2\r\n\r\nno")
    assert (parser.status, parser.take(), parser.is_complete) == (404, b"no", True)
    assert parser.headers == [(b"a", b""), (b"content-length", b"2")], "nothing of the last one"
    for behind in (LENGTH + b"other", b"rubbish"):
        parser, body = fed(LENGTH + b"hello" + behind, by_byte=by_byte)
        found = (body, parser.is_complete, parser.fault, parser.keeps_alive)
        assert found == (b"hello", True, "", False)
    for data in (b"", OK, LENGTH + b"hell", CHUNKED + b"1\r\na\r\n"):
        parser, body = fed(data)
        assert not parser.fault
        parser.feed_eof()
        assert parser.fault, "an answer that breaks off, behind what came"
        assert data.endswith(body + b"\r\n" if body == b"a" else body)


FAULTS = [
    b"not HTTP at all\r\n\r\n",
    b"HTTP/2.0 200 OK\r\n\r\n",
    b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
    OK + b"content-length: 1\r\ncontent-length: 2\r\n\r\n",
    OK + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n",
    OK + b"content-length: -1\r\n\r\n",
    OK + b"transfer-encoding: gzip\r\n\r\n",
    OK + b"transfer-encoding: gzip, chunked\r\n\r\n",
    OK + b"a: b\0\r\n\r\n",
    OK + b"a b: c\r\n\r\n",
    OK + b"x: " + b"y" * MAX_HEAD_BYTES,
    b"HTTP/1.1 103 Hints\r\n\r\n" * (MAX_HEAD_BYTES // 16),
    CHUNKED + b"zz\r\n",
    CHUNKED + b"F" * 17 + b"\r\n",
    CHUNKED + b"1\r\nab\r\n",
    CHUNKED + b"1;" + b"x" * 2 * MAX_HEAD_BYTES,
    CHUNKED + b"0\r\n" + b"a: b\r\n" * MAX_HEAD_BYTES,
]


@each_case("by_byte", [False, True])
@each_case("data", FAULTS, ids=[one[:60].decode("latin-1") for one in FAULTS])
def test_what_is_no_answer_is_a_fault(data: bytes, by_byte: bool) -> None:
    parser, _ = fed(data, by_byte=by_byte)
    assert parser.fault and not parser.is_complete and not parser.keeps_alive


def test_a_request_is_written_and_what_is_none_is_not() -> None:
    headers: Headers = [(b"host", b"box"), (b"content-length", b"5")]
    head = b"POST /v1/x HTTP/1.1\r\nhost: box\r\ncontent-length: 5\r\n\r\n"
    assert request_head(b"POST", b"/v1/x", headers) == head
    for target, name, value in (
        (b"/a b", b"host", b"box"),
        (b"/a\r\n", b"host", b"box"),
        (b"/", b"ho st", b"box"),
        (b"/", b"", b"box"),
        (b"/", b"host", b"box\r\nx: y"),
        (b"/", b"host", b"box\n"),
        (b"/", b"host", b"b\0x"),
    ):
        with pytest.raises(httpx2.LocalProtocolError):
            request_head(b"GET", target, [(name, value)])
