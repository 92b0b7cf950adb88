"""Sending frames to neurons' inboxes, and ringing where an inbox was empty.

    push ─▶ pending[neuron] ─▶ one script: XADD each, ring when the inbox was empty
                 ▲                 │
                 └── no answer ────┘  again, until the stall's limit

What is pushed while frames are on their way goes with the next ones, so that a burst costs two
round trips and not one for each request. Frames of one neuron keep their order. Those that Redis
has not acknowledged are sent again, so a neuron may be given one twice, and drops it.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import uuid
from collections import defaultdict
from dataclasses import dataclass

import redis

from inference.gateway.redis.doorbell import ring_message
from inference.gateway.redis.failure import REDIS_BACKOFF, redis_unavailable
from inference.gateway.redis.link import RedisLink
from inference.logs.throttled import ThrottledLog
from inference.protocol import keys
from inference.protocol.generation import Cancel, InboxFrame, Submit, encode_inbox_frame
from inference.wire.errors import ServiceUnavailableError

logger = logging.getLogger(__name__)

MAX_PENDING_BYTES = 128 * 1024 * 1024
"""The most that waits here for Redis, for all neurons. A submit beyond that is refused."""
FRAMES_A_PUSH = 256
BYTES_A_PUSH = 8 * 1024 * 1024
"""The most of one script call, where no frame alone is larger."""
MAX_INBOX_FRAMES = 20_000
"""That a neuron has not taken. A neuron that takes none could fill Redis by what it is sent."""
LOG_INTERVAL_S = 10.0

PUSH_SCRIPT = """
if redis.call('XLEN', KEYS[1]) >= tonumber(ARGV[4]) then
    return redis.error_reply('its neuron does not take its frames')
end
for i = 5, #ARGV do
    redis.call('XADD', KEYS[1], '*', ARGV[1], ARGV[i])
end
redis.call('EXPIRE', KEYS[1], ARGV[2])
if redis.call('XLEN', KEYS[1]) == #ARGV - 4 then
    redis.call('LPUSH', KEYS[2], ARGV[3])
end
"""
"""KEYS: inbox, the neuron's queue. ARGV: field, expiry, ring, the most frames, frames. A ring that
is lost costs at most a second: the heartbeat drains the inbox too."""


@dataclass(frozen=True, slots=True)
class _Outgoing:
    frame: bytes
    delivered: asyncio.Future[None]


class Dispatcher:
    """Belongs to one event loop."""

    def __init__(self, link: RedisLink, *, stall_limit_s: float) -> None:
        self._push_frames = link.register_script(PUSH_SCRIPT)
        self._stall_limit_s = stall_limit_s
        self._log = ThrottledLog(logger, logging.WARNING, interval_s=LOG_INTERVAL_S)
        self._num_pending_bytes = 0
        self._pending: defaultdict[str, list[_Outgoing]] = defaultdict(list)
        self._senders: dict[str, asyncio.Task[None]] = {}

    def push(self, neuron: str, frame: InboxFrame) -> asyncio.Future[None]:
        """Done once the frame is in the inbox; fails with ``ServiceUnavailableError`` when Redis
        did not take it within the stall's limit. Cancelled before it was sent, it is not sent."""
        outgoing = _Outgoing(encode_inbox_frame(frame), asyncio.get_running_loop().create_future())
        num_bytes = self._num_pending_bytes + len(outgoing.frame)
        if isinstance(frame, Submit) and num_bytes > MAX_PENDING_BYTES:
            outgoing.delivered.set_exception(_too_much())
            return outgoing.delivered
        self._num_pending_bytes = num_bytes
        self._pending[neuron].append(outgoing)
        if neuron not in self._senders:
            self._senders[neuron] = asyncio.create_task(self._send_pending(neuron))
        return outgoing.delivered

    def cancel_soon(self, neuron: str, request_id: str) -> None:
        """Tells the neuron to drop a request, for callers that cannot wait. One that does not get
        there is sent again when the neuron says that it still holds the request."""
        self.push(neuron, Cancel(request_id=request_id)).add_done_callback(_log_loss)

    async def close(self, timeout_s: float) -> None:
        """Returns when everything that was pushed has been sent or has failed, or is given up."""
        if senders := list(self._senders.values()):
            _, late = await asyncio.wait(senders, timeout=timeout_s)
            for sender in late:
                sender.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _send_pending(self, neuron: str) -> None:
        try:
            while batch := self._next_batch(neuron):
                await self._send(neuron, batch)
                self._num_pending_bytes -= sum(len(outgoing.frame) for outgoing in batch)
        finally:
            del self._senders[neuron]

    def _next_batch(self, neuron: str) -> list[_Outgoing]:
        waiting = self._pending.pop(neuron, [])
        batch: list[_Outgoing] = []
        num_bytes = 0
        for position, outgoing in enumerate(waiting):
            if outgoing.delivered.cancelled():
                self._num_pending_bytes -= len(outgoing.frame)
                continue
            num_bytes += len(outgoing.frame)
            if batch and (len(batch) == FRAMES_A_PUSH or num_bytes > BYTES_A_PUSH):
                self._pending[neuron] = waiting[position:]
                break
            batch.append(outgoing)
        return batch

    async def _send(self, neuron: str, batch: list[_Outgoing]) -> None:
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + self._stall_limit_s
        num_failures = 0
        while True:
            try:
                await self._push(neuron, batch)
            except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
                if loop.time() >= give_up_s:
                    self._fail(neuron, batch, error)
                    return
                num_failures += 1
                await asyncio.sleep(REDIS_BACKOFF.wait_s(num_failures))
            except Exception as error:  # noqa: BLE001 -- it takes nothing, or sending broke
                self._fail(neuron, batch, error)
                return
            else:
                for outgoing in batch:
                    if not outgoing.delivered.done():
                        outgoing.delivered.set_result(None)
                return

    async def _push(self, neuron: str, batch: list[_Outgoing]) -> None:
        now = datetime.datetime.now(datetime.UTC)
        ring = ring_message(neuron, task_id=uuid.uuid4(), now=now)
        frames = [outgoing.frame for outgoing in batch]
        await self._push_frames(
            keys=[keys.inbox_key(neuron), keys.neuron_queue(neuron)],
            args=[keys.INBOX_FRAME_FIELD, keys.INBOX_EXPIRY_S, ring, MAX_INBOX_FRAMES, *frames],
        )

    def _fail(self, neuron: str, batch: list[_Outgoing], error: Exception) -> None:
        self._log.log(neuron, f"cannot reach the inbox of {neuron}: {error}")
        for outgoing in batch:
            if not outgoing.delivered.done():
                outgoing.delivered.set_exception(redis_unavailable())


def _too_much() -> ServiceUnavailableError:
    limit_mib = MAX_PENDING_BYTES // 2**20
    return ServiceUnavailableError(
        "queue_full", f"{limit_mib} MiB of requests wait for Redis already; try again shortly."
    )


def _log_loss(delivered: asyncio.Future[None]) -> None:
    if not delivered.cancelled() and (error := delivered.exception()):
        logger.debug("a cancel was not delivered: %s", error)
