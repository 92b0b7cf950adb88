"""HTTP/1.1 with upstreams, without a connection: whole, byte by byte, and with bytes behind it."""

from __future__ import annotations

from collections.abc import Iterable

import httpx2
import pytest

from inference.gateway.upstreams.connection import (
    MAX_HEAD_BYTES,
    AnswerParser,
    Headers,
    request_head,
)
from tests.cases import each_case

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
LENGTH = OK + b"content-length: 5\r\n\r\n"
WHOLE = {
    "chunks": (CHUNKED + b"2\r\nhe\r\n3;ext=1\r\nllo\r\n0\r\ntrailer: x\r\n\r\n", True),
    "a length": (LENGTH + b"hello", True),
    "until it closes": (OK + b"\r\nhello", False),
    "closing": (OK + b"connection: close\r\ncontent-length: 5\r\n\r\nhello", False),
    "1.0": (b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello", False),
    "informed first": (b"HTTP/1.1 103 Hints\r\nlink: x\r\n\r\n" + LENGTH + b"hello", True),
}


def pieces(data: bytes, *, by_byte: bool) -> Iterable[bytes]:
    """A large head is cut into some more bytes."""
    size = 1 if len(data) < 1000 else 997
    return (data[at : at + size] for at in range(0, len(data), size)) if by_byte else [data]


def fed(data: bytes, *, by_byte: bool = False) -> tuple[AnswerParser, bytes]:
    parser, body = AnswerParser(), b""
    for piece in pieces(data, by_byte=by_byte):
        parser.feed(piece)
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


@each_case("by_byte", [False, True])
@each_case("behind", [LENGTH + b"other", b"rubbish"])
def test_what_comes_behind_an_answer_is_not_of_the_next_one(behind: bytes, by_byte: bool) -> None:
    parser, body = fed(LENGTH + b"hello" + behind, by_byte=by_byte)
    assert (body, parser.is_complete, parser.fault) == (b"hello", True, "")
    assert not parser.keeps_alive


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


@each_case("data", [b"", OK, LENGTH + b"hell", CHUNKED + b"1\r\na\r\n"])
def test_an_answer_that_breaks_off_is_a_fault_behind_what_came(data: bytes) -> None:
    parser, body = fed(data)
    assert not parser.fault
    parser.feed_eof()
    assert parser.fault
    assert data.endswith(body + b"\r\n" if body == b"a" else body)


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
