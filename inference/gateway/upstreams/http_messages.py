"""HTTP/1.1 with an upstream: a request as bytes, and the bytes of its answer. Pure.

    RequestWriter: head ─▶ part … ─▶ end
    AnswerParser:  begin ─▶ feed … ─▶ has_head ─▶ take … ─▶ is_complete      feed_eof: no more comes

llhttp parses, which is strict: no bare line feeds, no two lengths, no length beside chunks. Errors
are httpx2's.
"""

from __future__ import annotations

import re

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
        """What comes behind a complete answer only keeps its connection from being used again."""
        self.keeps_alive = False
        if not self.is_complete:
            self.fault = self.fault or why
