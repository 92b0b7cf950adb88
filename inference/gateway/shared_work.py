"""Work that many callers may wait for and one task does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class SharedWork(Generic[Result]):
    """The work is a task of its own: a request whose client leaves stops waiting at once and does
    not cut a Redis reply in two."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> None:
        self._work = work
        self._task: asyncio.Task[Result] | None = None

    async def join(self) -> Result:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())
            self._task.add_done_callback(_retrieve)
        return await asyncio.shield(self._task)

    async def finish(self) -> None:
        """Waits until what has begun has ended."""
        if self._task is not None:
            await asyncio.wait([self._task])


def _retrieve(task: asyncio.Task[Any]) -> None:
    """A shared task may have lost its last waiter; a waiting caller gets the exception all the
    same."""
    if not task.cancelled():
        task.exception()
