"""Bodies that may be small or large: small ones stay in memory and on the event loop.

An answer's body is sent in pieces of bounded size, as it is encoded.

    parts ─▶ | up to PIECE_BYTES | ─▶ socket, when it has room ─▶ other tasks run ─▶ …

A body that fits into one piece is sent whole, with its length; of a longer one the length is not
known when it begins. A client that reads slowly holds up the encoding of its own answer alone.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import IO, Protocol, TypeVar, cast

MAX_IN_MEMORY_BYTES = 1024 * 1024
LARGE_BODY_BYTES = 128 * 1024
"""Parsing less takes a few milliseconds at most; a thread costs a tenth of one."""

Parsed = TypeVar("Parsed")


def spooled_file() -> IO[bytes]:
    """In memory up to a size, then a temporary file on disk, which takes a file descriptor. Deleted
    when it is closed or forgotten."""
    return cast(IO[bytes], tempfile.SpooledTemporaryFile(MAX_IN_MEMORY_BYTES))


async def parse_aside(parse: Callable[[], Parsed], num_bytes: int) -> Parsed:
    """What ``parse`` returns or raises, for a body of so many bytes."""
    if num_bytes > LARGE_BODY_BYTES:
        return await asyncio.to_thread(parse)
    return parse()


PIECE_BYTES = 64 * 1024
FILE_PIECE_BYTES = 256 * 1024
Headers = list[tuple[bytes, bytes]]


class Responder(Protocol):
    """What a ``BodyWriter`` needs of a consumer."""

    async def respond(self, status: int, body: bytes, *, type_: bytes = b"") -> None: ...
    async def begin_body(self, status: int, *, type_: bytes = b"") -> None: ...
    async def send_body(self, body: bytes, *, last: bool = False) -> None: ...


class BodyWriter:
    def __init__(self, responder: Responder, *, type_: bytes = b"") -> None:
        self._responder = responder
        self._type = type_
        self._pending = bytearray()
        self._has_begun = False

    async def write(self, part: bytes) -> None:
        self._pending += part
        while len(self._pending) > PIECE_BYTES:
            piece = bytes(memoryview(self._pending)[:PIECE_BYTES])
            del self._pending[:PIECE_BYTES]
            if not self._has_begun:
                self._has_begun = True
                await self._responder.begin_body(200, type_=self._type)
            await self._responder.send_body(piece)
            await asyncio.sleep(0)

    async def finish(self) -> None:
        rest = bytes(self._pending)
        if self._has_begun:
            await self._responder.send_body(rest, last=True)
        else:
            await self._responder.respond(200, rest, type_=self._type)


async def send_in_pieces(parts: Sequence[bytes], send: Callable[..., Awaitable[None]]) -> None:
    """``send`` is called with each piece and whether it is the last."""
    pending = b""
    for part in parts:
        pending += part
        starts = range(0, len(pending) - PIECE_BYTES, PIECE_BYTES)
        for start in starts:
            await send(pending[start : start + PIECE_BYTES], last=False)
            await asyncio.sleep(0)
        pending = pending[len(starts) * PIECE_BYTES :]
    await send(pending, last=True)


async def send_file(path: Path, send: Callable[[bytes], Awaitable[None]]) -> None:
    with path.open("rb") as file:
        while piece := await asyncio.to_thread(file.read, FILE_PIECE_BYTES):
            await send(piece)
