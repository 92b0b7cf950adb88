"""Bodies that may be small or large: small ones are parsed on the event loop, forms lie in a file.

An answer's body is sent in pieces of bounded size.

    parts ─▶ | up to PIECE_BYTES | ─▶ socket, when it has room ─▶ other tasks run ─▶ …
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from typing import IO, TypeVar, cast

from inference.wire.errors import InvalidRequestError, RequestTooLargeError
from inference.wire.fields import shown

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
