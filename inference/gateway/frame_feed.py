"""Frames on their way from work that goes on by itself to the one client that watches it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

MAX_UNREAD_BYTES = 8 * 1024 * 1024


class FrameFeed:
    """``abort`` is called when the watcher does not take what comes; the work is not held up."""

    def __init__(self, abort: Callable[[], None]) -> None:
        self._abort = abort
        self._frames: list[bytes] = []
        self._unread_bytes = 0
        self._grew = asyncio.Event()
        self._closed = False
        self._left = False

    def put(self, frames: bytes) -> None:
        """Ignored once the watcher has left."""
        if self._left or not frames:
            return
        self._frames.append(frames)
        self._unread_bytes += len(frames)
        self._grew.set()
        if self._unread_bytes > MAX_UNREAD_BYTES:
            self.leave()
            self._abort()

    def close(self) -> None:
        """Nothing comes after what is there."""
        self._closed = True
        self._grew.set()

    def leave(self) -> None:
        self._left = True
        self._frames.clear()

    async def take(self) -> tuple[bytes, bool]:
        """Everything that is there, and whether it is the last."""
        await self._grew.wait()
        self._grew.clear()
        frames, self._frames = b"".join(self._frames), []
        self._unread_bytes = 0
        return frames, self._closed
