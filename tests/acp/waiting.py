"""Conditions that come true sooner or later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

LIMIT_S = 60.0


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not is_so():
            await asyncio.sleep(0.01)


def has_ended(pid: str) -> bool:
    try:
        return "zombie" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
