"""What a gateway does beside its requests, until it stops. One that breaks is logged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)

CANCEL_AGAIN_S = 0.1


class BackgroundLoops:
    """Belong to one event loop."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def are_running(self) -> bool:
        return bool(self._tasks)

    def begin(self, name: str, loop: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(loop, name=f"gateway {name}")
        task.add_done_callback(_log_crash)
        self._tasks.append(task)
        return task

    async def stop(self) -> None:
        """A Redis reply that arrives in the same moment as a cancellation swallows it (asyncio's
        timeouts before Python 3.12), so it is repeated until it holds."""
        pending = set(self._tasks)
        while pending:
            for task in pending:
                task.cancel()
            _, pending = await asyncio.wait(pending, timeout=CANCEL_AGAIN_S)
        self._tasks = []


def _log_crash(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        logger.critical("%s stopped", task.get_name(), exc_info=error)
