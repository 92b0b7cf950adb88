"""A multipart/form-data body (RFC 7578) in a file: its parts, and a rewrite with another model.

    --B CRLF head CRLF CRLF content CRLF --B CRLF … CRLF --B--
                           [start, end)

A form is forwarded under a new boundary, which no content can contain, so the upstream reads the
same parts as the gateway.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from email.utils import collapse_rfc2231_value
from typing import IO

from inference.wire.errors import InvalidRequestError, MissingParameterError

PIECE_BYTES = 256 * 1024
MAX_FORM_PARTS = 128
MAX_HEAD_BYTES = 8 * 1024
MAX_FIELD_BYTES = 1024 * 1024
BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,\-./:=? ]{0,69}[0-9A-Za-z'()+_,\-./:=?]")
FIELD_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,64}(\[[A-Za-z0-9_.\-]{0,64}\])?")
MEDIA_TYPE = re.compile(r"[\w!#$&^.+-]{1,127}/[\w!#$&^.+-]{1,127}(\s*;[\x20-\x7e]{0,200})?")
UNENCODED = frozenset({"", "7bit", "8bit", "binary"})
ESCAPED = str.maketrans({'"': "%22", "\r": "%0D", "\n": "%0A"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    name: str
    filename: str | None
    content_type: str
    start: int
    """``[start, end)`` in the body."""
    end: int

    @property
    def num_bytes(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Form:
    parts: tuple[Part, ...]
    body: IO[bytes]

    def part(self, name: str) -> Part | None:
        found = [part for part in self.parts if part.name == name]
        if len(found) > 1:
            raise InvalidRequestError(f"'{name}' is in the form more than once.", param=name)
        return found[0] if found else None

    def text(self, name: str) -> str | None:
        part = self.part(name)
        if part is None:
            return None
        if part.filename is not None or part.num_bytes > MAX_FIELD_BYTES:
            raise InvalidRequestError(f"'{name}' must be a short text.", param=name)
        try:
            return self.read(part, part.num_bytes).decode()
        except UnicodeDecodeError:
            raise InvalidRequestError(f"'{name}' is not UTF-8.", param=name) from None

    def file(self, name: str) -> Part:
        part = self.part(name)
        if part is None:
            raise MissingParameterError(name)
        if part.filename is None:
            raise InvalidRequestError(f"'{name}' must be a file, with a filename.", param=name)
        return part

    def read(self, part: Part, num_bytes: int) -> bytes:
        self.body.seek(part.start)
        return self.body.read(min(num_bytes, part.num_bytes))

    def rewritten(self, boundary: str, *, model: str, without: frozenset[str]) -> Rewritten:
        pieces: list[bytes | Part] = []
        for part in self.parts:
            if part.name in without:
                continue
            content = model.encode() if part.name == "model" else part
            pieces += [_head(boundary, part), content, b"\r\n"]
        pieces.append(f"--{boundary}--\r\n".encode())
        return Rewritten(self.body, tuple(pieces))


@dataclass(frozen=True, slots=True)
class Rewritten:
    body: IO[bytes]
    pieces: tuple[bytes | Part, ...]

    @property
    def num_bytes(self) -> int:
        return sum(
            len(piece) if isinstance(piece, bytes) else piece.num_bytes for piece in self.pieces
        )

    def chunks(self) -> Iterator[bytes]:
        for piece in self.pieces:
            if isinstance(piece, bytes):
                yield piece
                continue
            for at in range(piece.start, piece.end, PIECE_BYTES):
                self.body.seek(at)
                yield self.body.read(min(PIECE_BYTES, piece.end - at))


def read_form(content_type: str, body: IO[bytes]) -> Form:
    """Raises ``InvalidRequestError``."""
    delimiter = b"\r\n--" + _boundary(content_type).encode()
    begins = _delimiters(body, delimiter)
    if not begins or begins[0] != -2:
        raise _unreadable("it does not begin with its boundary")
    size = body.seek(0, os.SEEK_END)
    parts: list[Part] = []
    for begin, end in zip(begins, [*begins[1:], size], strict=True):
        start = begin + len(delimiter)
        body.seek(start)
        head = body.read(max(0, min(end - start, MAX_HEAD_BYTES)))
        if head.startswith(b"--"):
            if end != size or head[2:] not in (b"", b"\r\n"):
                raise _unreadable("it continues behind its last boundary")
            return Form(tuple(parts), body)
        if end == size:
            break
        parts.append(_part(head, start, end))
    raise _unreadable("its last boundary is missing: it may have been cut off")


def _boundary(content_type: str) -> str:
    message = Message()
    message["content-type"] = content_type
    if message.get_content_type() != "multipart/form-data":
        raise InvalidRequestError("Send the body as multipart/form-data.")
    boundary = message.get_boundary() or ""
    if not BOUNDARY.fullmatch(boundary):
        raise _unreadable("its Content-Type names no boundary of 1 to 70 characters")
    return boundary


def _delimiters(body: IO[bytes], delimiter: bytes) -> list[int]:
    """The offset of each. The first one's line break is before the body, at -2."""
    found: list[int] = []
    window, base = b"\r\n", -2
    body.seek(0)
    while piece := body.read(PIECE_BYTES):
        window += piece
        found += [base + one.start() for one in re.finditer(re.escape(delimiter), window)]
        if len(found) > MAX_FORM_PARTS + 1:
            raise _unreadable(f"it has more than {MAX_FORM_PARTS} parts")
        num_kept = min(len(window), len(delimiter) - 1)
        base += len(window) - num_kept
        window = window[-num_kept:]
    return found


def _part(head: bytes, at: int, end: int) -> Part:
    """``head``: the bytes behind a delimiter, at that offset."""
    line, crlf, rest = head.partition(b"\r\n")
    if not crlf or line.strip(b" \t"):
        raise _unreadable("a boundary's line has something behind it")
    lines, empty_line, _ = (crlf + rest).partition(b"\r\n\r\n")
    if not empty_line:
        raise _unreadable("a part has no end of its head, or a long one")
    start = at + len(line) + len(lines) + len(empty_line)
    try:
        message = HeaderParser().parsestr(lines.removeprefix(b"\r\n").decode())
    except UnicodeDecodeError:
        raise _unreadable("a part's head is not UTF-8") from None
    name = _parameter(message, "name")
    if message.get_content_disposition() != "form-data" or name is None:
        raise _unreadable("a part has no name")
    if not FIELD_NAME.fullmatch(name):
        raise _unreadable("a part's name is none of a field")
    encoding = str(message.get("content-transfer-encoding", "")).strip().lower()
    if encoding not in UNENCODED:
        raise InvalidRequestError(f"'{name}' has an encoding; send it as it is.", param=name)
    content_type = str(message.get("content-type", "")).strip()
    if content_type and not MEDIA_TYPE.fullmatch(content_type):
        raise InvalidRequestError(f"'{name}' has no media type as its type.", param=name)
    filename = _parameter(message, "filename")
    return Part(name=name, filename=filename, content_type=content_type, start=start, end=end)


def _parameter(message: Message, name: str) -> str | None:
    """RFC 7578, 4.2 forbids a charset here; aiohttp sends ``filename*`` alone."""
    value = message.get_param(name, header="content-disposition")
    return None if value is None else collapse_rfc2231_value(value)


def _head(boundary: str, part: Part) -> bytes:
    lines = [f'--{boundary}\r\nContent-Disposition: form-data; name="{part.name}"']
    if part.filename is not None:
        lines.append(f'; filename="{part.filename.translate(ESCAPED)}"')
    if part.content_type:
        lines.append(f"\r\nContent-Type: {part.content_type}")
    return ("".join(lines) + "\r\n\r\n").encode()


def _unreadable(why: str) -> InvalidRequestError:
    return InvalidRequestError(f"The form cannot be read: {why}.")
