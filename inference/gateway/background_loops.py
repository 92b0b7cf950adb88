"""A gateway's background tasks. A loop that fails is logged and restarted after a pause."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

from inference.supervised_threads import FailureRecord
from inference.wire.errors import ServiceUnavailableError

logger = logging.getLogger(__name__)

CANCEL_AGAIN_S = 0.1
Loop = Callable[[], Coroutine[Any, Any, None]]


class BackgroundLoops:
    def __init__(self) -> None:
        self.are_running = False
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, name: str, loop: Loop) -> asyncio.Task[None]:
        task = asyncio.create_task(_supervised(name, loop), name=f"gateway {name}")
        self._tasks.append(task)
        self.are_running = True
        return task

    async def stop(self) -> None:
        """A Redis reply that arrives with a cancellation swallows it (asyncio's timeouts before
        Python 3.12), so the cancellation is repeated."""
        pending = set(self._tasks)
        while pending:
            for task in pending:
                task.cancel()
            _, pending = await asyncio.wait(pending, timeout=CANCEL_AGAIN_S)
        self._tasks = []
        self.are_running = False


async def _supervised(name: str, loop: Loop) -> None:
    record = FailureRecord(f"gateway's loop {name}")
    try:
        while not record.has_ended:
            record.starts()
            try:
                await loop()
                record.has_ended = True
            except BaseException as error:
                if _is_cancelled():
                    raise
                await asyncio.sleep(record.broke(error))
    finally:
        record.has_ended = True


async def repeat(work: Callable[[], Awaitable[object]], interval_s: float) -> None:
    while True:
        try:
            await work()
        except ServiceUnavailableError as error:
            logger.debug("%s", error.message)
        except Exception:
            logger.exception("a round of %s failed", work)
        await asyncio.sleep(interval_s)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


Result = TypeVar("Result")


class SharedWork(Generic[Result]):
    """One task for many waiting callers: one that leaves does not cut a Redis reply in two."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> None:
        self._work = work
        self._task: asyncio.Task[Result] | None = None

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    async def join(self) -> Result:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())
            self._task.add_done_callback(_retrieve)
        return await asyncio.shield(self._task)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def finish(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
