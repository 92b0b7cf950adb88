"""Waiting for what another task is about to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PATIENCE_S = 60


async def until(holds: Callable[[], object]) -> None:
    """Return once ``holds()`` is true. Raises ``TimeoutError`` after ``PATIENCE_S``."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.01)
