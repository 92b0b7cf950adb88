"""Noticing that a stream has been quiet for too long. Must not know what is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class QuietTimer:
    """Calls ``on_quiet`` when nothing was touched for ``first_s``, and from then on for each
    ``then_s``. A touch costs nothing but a clock reading: the timer looks when it fires."""

    def __init__(
        self, on_quiet: Callable[[], Awaitable[None]], *, first_s: float, then_s: float
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_quiet = on_quiet
        self._interval_s = first_s
        self._then_s = then_s
        self._touched_s = self._loop.time()
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(first_s, self._look)
        self._call: asyncio.Task[None] | None = None

    def touch(self) -> None:
        self._interval_s = self._then_s
        self._touched_s = self._loop.time()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._call is not None:
            self._call.cancel()

    def _look(self) -> None:
        due_s = self._touched_s + self._interval_s
        if self._loop.time() >= due_s:
            self.touch()
            self._call = self._loop.create_task(self._run())
            due_s = self._touched_s + self._interval_s
        self._timer = self._loop.call_at(due_s, self._look)

    async def _run(self) -> None:
        await self._on_quiet()
