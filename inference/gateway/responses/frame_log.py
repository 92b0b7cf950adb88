"""The events of one stream while its work continues by itself, for clients that watch it from any
event on.

    put ─▶ | 17 | 18 | 19 | 20 |  the newest of them, up to MAX_KEPT_BYTES
                  └── FrameWatch(next: 18) ── take ─▶ 18, 19, 20

Work is never held up: a watcher whose next event has gone is given up. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import islice

MAX_KEPT_BYTES = 4 * 1024 * 1024
FRAME_END = b"\n\n"


class EventsGoneError(Exception):
    def __init__(self, first: int) -> None:
        super().__init__(f"events before {first} are gone")
        self.first = first


class FrameLog:
    """Events are numbered from 0. Belongs to one event loop."""

    def __init__(self) -> None:
        self.is_closed = False
        self._frames: deque[bytes] = deque()
        self._first = 0
        self._kept_bytes = 0
        self._watches: set[FrameWatch] = set()

    @property
    def end(self) -> int:
        return self._first + len(self._frames)

    def put(self, frames: bytes) -> None:
        for frame in frames.split(FRAME_END)[:-1]:
            self._frames.append(frame + FRAME_END)
            self._kept_bytes += len(frame) + len(FRAME_END)
        while self._kept_bytes > MAX_KEPT_BYTES and len(self._frames) > 1:
            self._kept_bytes -= len(self._frames.popleft())
            self._first += 1
        for watch in tuple(self._watches):
            watch.wake()

    def close(self) -> None:
        self.is_closed = True
        for watch in tuple(self._watches):
            watch.wake()

    def watch(self, abort: Callable[[], None], *, after: int = -1) -> FrameWatch:
        """Watches from the event after number ``after`` on. ``abort`` is called when the log drops
        an event that the watch has not taken. Raises ``EventsGoneError``."""
        if after + 1 < self._first:
            raise EventsGoneError(self._first)
        watch = FrameWatch(self, abort, after + 1)
        self._watches.add(watch)
        return watch

    def since(self, number: int) -> bytes:
        return b"".join(islice(self._frames, number - self._first, None))

    def has_lost(self, number: int) -> bool:
        return number < self._first

    def forget(self, watch: FrameWatch) -> None:
        self._watches.discard(watch)


class FrameWatch:
    def __init__(self, log: FrameLog, abort: Callable[[], None], next_number: int) -> None:
        self._log = log
        self._abort = abort
        self._next_number = next_number
        self._awake = asyncio.Event()
        self.wake()

    def wake(self) -> None:
        if self._log.has_lost(self._next_number):
            self.leave()
            self._abort()
        elif self._log.is_closed or self._log.end > self._next_number:
            self._awake.set()

    def leave(self) -> None:
        self._log.forget(self)

    async def take(self) -> tuple[bytes, bool]:
        await self._awake.wait()
        self._awake.clear()
        frames = self._log.since(self._next_number)
        self._next_number = max(self._next_number, self._log.end)
        return frames, self._log.is_closed
