"""Bodies that may be small or large: small ones stay in memory and on the event loop.

A large request's body is in a file, and the application reads it piece by piece. Daphne puts all
pieces into the application's queue at once, so a body in a file would be in memory whole; here only
the end of a large one is queued.

An answer's body is sent in pieces of bounded size.

    parts ─▶ | up to PIECE_BYTES | ─▶ socket, when it has room ─▶ other tasks run ─▶ …
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from typing import IO, Any, TypeVar, cast

from inference.wire.common.fields import shown
from inference.wire.errors import InvalidRequestError, RequestTooLargeError

AS_IT_IS = b"identity"
MAX_IN_MEMORY_BYTES = 1024 * 1024
LARGE_BODY_BYTES = 128 * 1024
"""Parsing less takes a few milliseconds at most; a thread costs a tenth of one."""

Parsed = TypeVar("Parsed")


def spooled_file() -> IO[bytes]:
    """Returns a file that stays in memory up to a size and is then a temporary file on disk. It is
    deleted when it is closed or collected."""
    return cast(IO[bytes], tempfile.SpooledTemporaryFile(MAX_IN_MEMORY_BYTES))


def check_body_headers(headers: Sequence[tuple[bytes, bytes]], max_body_bytes: int) -> None:
    """Raises ``ApiError``."""
    declared = dict(headers)
    if (encoding := declared.get(b"content-encoding", AS_IT_IS)).lower() != AS_IT_IS:
        raise InvalidRequestError(
            f"The body's Content-Encoding is {shown(encoding.decode('latin-1'))!r}; bodies are "
            "read as they are here, without one."
        )
    length = declared.get(b"content-length", b"0")
    if length.isdigit() and int(length) > max_body_bytes:
        raise RequestTooLargeError(max_body_bytes)


async def parse_aside(parse: Callable[[], Parsed], num_bytes: int) -> Parsed:
    if num_bytes > LARGE_BODY_BYTES:
        return await asyncio.to_thread(parse)
    return parse()


PIECE_BYTES = 64 * 1024
FILE_PIECE_BYTES = 256 * 1024


async def send_in_pieces(parts: Sequence[bytes], send: Callable[..., Awaitable[None]]) -> None:
    pending = b""
    for part in parts:
        pending += part
        starts = range(0, len(pending) - PIECE_BYTES, PIECE_BYTES)
        for start in starts:
            await send(pending[start : start + PIECE_BYTES], last=False)
            await asyncio.sleep(0)
        pending = pending[len(starts) * PIECE_BYTES :]
    await send(pending, last=True)


BODY = "helexa.body"

Receive = Callable[[], Awaitable[dict[str, Any]]]


class BodyReader:
    def __init__(self, body: IO[bytes], receive: Receive) -> None:
        self._body: IO[bytes] | None = body
        self._receive = receive

    async def __call__(self) -> dict[str, Any]:
        if self._body is not None:
            await asyncio.sleep(0)  # other tasks run between two pieces
            if piece := self._body.read(FILE_PIECE_BYTES):
                return {"type": "http.request", "body": piece, "more_body": True}
            self._body.close()
            self._body = None
        return await self._receive()


def with_large_bodies(application: Any) -> Any:
    def called(scope: dict[str, Any], receive: Receive, send: Any) -> Any:
        body = scope.pop(BODY, None)
        return application(scope, receive if body is None else BodyReader(body, receive), send)

    return called
