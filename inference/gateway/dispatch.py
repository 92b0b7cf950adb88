"""Sending frames to neurons' inboxes, and ringing where an inbox was empty.

    push ─▶ pending[neuron] ─▶ one LPUSH of all that is pending ─▶ ring when the inbox was empty

What is pushed while an LPUSH is on its way goes with the next one, so that a burst costs two round
trips and not two for each request. Frames of one neuron keep their order.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import uuid
from collections import defaultdict

import redis
import redis.asyncio

from inference.gateway.doorbell import ring_message
from inference.protocol import keys
from inference.protocol.generation import Cancel, InboxFrame, encode_inbox_frame
from inference.wire.errors import ServiceUnavailableError

logger = logging.getLogger(__name__)

_Pending = list[tuple[bytes, "asyncio.Future[None]"]]


def redis_unavailable() -> ServiceUnavailableError:
    return ServiceUnavailableError("redis_unavailable", "Redis does not answer; try again shortly.")


class Dispatcher:
    """Belongs to one event loop."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._redis = client
        self._pending: defaultdict[str, _Pending] = defaultdict(list)
        self._senders: dict[str, asyncio.Task[None]] = {}

    def push(self, neuron: str, frame: InboxFrame) -> asyncio.Future[None]:
        """Done once the frame is in the inbox; fails with ``ServiceUnavailableError`` when Redis
        did not take it."""
        delivered = asyncio.get_running_loop().create_future()
        self._pending[neuron].append((encode_inbox_frame(frame), delivered))
        if neuron not in self._senders:
            self._senders[neuron] = asyncio.create_task(self._send_pending(neuron))
        return delivered

    def cancel_soon(self, neuron: str, request_id: str) -> None:
        """Tells the neuron to drop a request, for callers that cannot wait. When Redis is away the
        neuron notices by itself that this gateway is."""
        self.push(neuron, Cancel(request_id=request_id)).add_done_callback(_log_loss)

    async def flush(self) -> None:
        """Returns when everything that was pushed has been sent or has failed."""
        await asyncio.gather(*self._senders.values())

    async def _send_pending(self, neuron: str) -> None:
        try:
            while batch := self._pending.pop(neuron, None):
                await self._send(neuron, batch)
        finally:
            del self._senders[neuron]

    async def _send(self, neuron: str, batch: _Pending) -> None:
        frames = [frame for frame, _ in batch]
        try:
            length = await self._redis.lpush(keys.inbox_key(neuron), *frames)
        except (redis.RedisError, OSError) as error:
            logger.warning("cannot reach the inbox of %s: %s", neuron, error)
            for _, delivered in batch:
                if not delivered.done():
                    delivered.set_exception(redis_unavailable())
            return
        for _, delivered in batch:
            if not delivered.done():
                delivered.set_result(None)
        if length == len(frames):
            await self._ring(neuron)

    async def _ring(self, neuron: str) -> None:
        """A ring that is lost costs at most a second: the heartbeat drains the inbox too."""
        now = datetime.datetime.now(datetime.UTC)
        message = ring_message(neuron, task_id=uuid.uuid4(), now=now)
        try:
            await self._redis.lpush(keys.neuron_queue(neuron), message)
        except (redis.RedisError, OSError) as error:
            logger.warning("cannot ring %s: %s", neuron, error)


def _log_loss(delivered: asyncio.Future[None]) -> None:
    if not delivered.cancelled() and (error := delivered.exception()):
        logger.info("a cancel was not delivered: %s", error)
