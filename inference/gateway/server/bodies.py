"""Bodies that may be small or large: small ones stay in memory and on the event loop."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from typing import IO, TypeVar, cast

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
