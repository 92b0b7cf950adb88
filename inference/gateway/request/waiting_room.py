"""Requests that wait for a model to be had: one of them looks, all of them are woken.

    join ─▶ Room of the model ── every 250 ms: placement decides once ──▶ still waiting
                              └─▶ a place, a refusal or an error: everybody is woken and
                                  asks placement for itself, in the order of arrival

However many wait, placement is asked once a round. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from inference.protocol.waiting import WaitingModel
from inference.wire.errors import ServiceUnavailableError

LOOK_INTERVAL_S = 0.25
RETRY_AFTER_S = 1.0

Look = Callable[[], Awaitable[bool]]
"""Whether waiting is over; starts what has to be started. Raises ``ApiError``."""


class WaitingRoom:
    def __init__(self, *, max_waiting: int) -> None:
        self.num_waiting = 0
        self._max_waiting = max_waiting
        self._rooms: dict[str, _Room] = {}

    def waiting(self) -> dict[str, WaitingModel]:
        """The models that requests wait for."""
        now_s = time.monotonic()
        return {
            model: WaitingModel(num_requests=room.num_waiting, oldest_s=now_s - room.since_s)
            for model, room in self._rooms.items()
        }

    async def wait(self, model: str, look: Look, *, timeout_s: float) -> None:
        """Returns when ``look`` returns true or time is up; the first request in a model's room
        looks for all. Raises ``ServiceUnavailableError`` where too many wait, and what ``look``
        raises.
        """
        if self.num_waiting >= self._max_waiting:
            raise ServiceUnavailableError(
                "queue_full",
                f"{self._max_waiting:,} requests wait for models to be loaded here, which is as "
                "many as may (HELEXA_MAX_WAITING_REQUESTS).",
                retry_after_s=RETRY_AFTER_S,
            )
        room = self._rooms.get(model)
        if room is None or room.task.done():
            room = self._rooms[model] = _Room(look)
        self.num_waiting += 1
        room.num_waiting += 1
        try:
            await asyncio.wait({room.task}, timeout=timeout_s)
        finally:
            self.num_waiting -= 1
            room.num_waiting -= 1
            if not room.num_waiting:
                room.task.cancel()
                if self._rooms.get(model) is room:
                    del self._rooms[model]
        if room.task.done() and not room.task.cancelled():
            room.task.result()


class _Room:
    """Where requests wait for one model. Its task ends when the waiting does."""

    def __init__(self, look: Look) -> None:
        self.num_waiting = 0
        self.since_s = time.monotonic()
        self.task = asyncio.create_task(_until(look), name="gateway waiting room")
        self.task.add_done_callback(_retrieve)


async def _until(look: Look) -> None:
    while True:
        await asyncio.sleep(LOOK_INTERVAL_S)
        if await look():
            return


def _retrieve(task: asyncio.Task[None]) -> None:
    """Everybody may have left."""
    if not task.cancelled():
        task.exception()
