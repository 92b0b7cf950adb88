"""Parsing requests without holding up the event loop: large bodies are parsed in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

LARGE_BODY_BYTES = 128 * 1024
"""Parsing less takes a few milliseconds at most; a thread costs a tenth of one."""

Parsed = TypeVar("Parsed")


async def parse_aside(parse: Callable[[], Parsed], num_bytes: int) -> Parsed:
    """What ``parse`` returns or raises, for a body of so many bytes."""
    if num_bytes > LARGE_BODY_BYTES:
        return await asyncio.to_thread(parse)
    return parse()
