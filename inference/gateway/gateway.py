"""One gateway: its Redis connections, its background tasks, and the requests it has open.

    Gateway ─┬─ EventReader   events in
             ├─ Liveness      alive key out, heartbeats in
             ├─ Dispatcher    frames out
             └─ Placer        where to

Starts on the first request (or an ASGI lifespan), on whatever event loop serves it; importing it
starts nothing. Must not know HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from helexa_site.config import Config
from inference.gateway.catalogue import Catalogue
from inference.gateway.dispatch import Dispatcher
from inference.gateway.event_reader import EventReader
from inference.gateway.liveness import Liveness
from inference.gateway.metrics import Metrics
from inference.gateway.placing import Place, Placer
from inference.gateway.streams import RequestStream, RequestStreams

logger = logging.getLogger(__name__)

COMMAND_TIMEOUT_S = 3.0
READ_TIMEOUT_S = 5.0
"""Longer than the reader blocks, so that a Redis that hangs is noticed."""
CANCEL_AGAIN_S = 0.1
FAREWELL_S = 1.0
"""What requests that were cut short get to tell their clients."""


class Gateway:
    def __init__(self, config: Config, catalogue: Catalogue) -> None:
        self.config = config
        self.catalogue = catalogue
        self.gateway_id = uuid.uuid4().hex
        self.metrics = Metrics()
        self.draining = False
        self._handlers: set[asyncio.Task[None]] = set()
        self._loops: list[asyncio.Task[None]] = []

    def ensure_started(self) -> None:
        """Call on the event loop that will serve."""
        if self._loops:
            return
        self._redis = _client(self.config.redis_url, COMMAND_TIMEOUT_S)
        self._reader_redis = _client(self.config.redis_url, READ_TIMEOUT_S)
        self.streams = RequestStreams()
        self.dispatcher = Dispatcher(self._redis)
        reader = EventReader(self._reader_redis, self.gateway_id, self.streams)
        self.liveness = Liveness(self._redis, self.gateway_id, self.streams, reader)
        self.placer = Placer(self.catalogue, self.liveness.snapshot, self.streams)
        self._loops = [
            asyncio.create_task(loop, name=f"gateway {name}")
            for name, loop in (
                ("reader", reader.run()),
                ("alive", self.liveness.run_alive()),
                ("watch", self.liveness.run_watch()),
            )
        ]
        for task in self._loops:
            task.add_done_callback(_log_crash)

    def spawn(self, handler: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs one request's handler; ``drain`` waits for it."""
        task = asyncio.create_task(handler)
        self._handlers.add(task)
        task.add_done_callback(self._handlers.discard)
        return task

    def open_stream(
        self, request_id: str, place: Place, *, timeout_s: float, abort: Callable[[], None]
    ) -> RequestStream:
        stream = RequestStream(
            request_id=request_id,
            neuron=place.neuron,
            epoch=place.epoch,
            model=place.model,
            first_token_timeout_s=timeout_s,
            abort=abort,
        )
        self.streams.add(stream)
        return stream

    def close_stream(self, stream: RequestStream) -> None:
        """Unless it is settled, the neuron is told to drop the request: it may still hold
        blocks."""
        self.streams.remove(stream)
        stream.end()
        if not stream.is_settled:
            self.dispatcher.cancel_soon(stream.neuron, stream.request_id)

    async def drain(self, grace_s: float) -> None:
        """Refuses what is new, lets what is open finish for ``grace_s``, cuts the rest short."""
        self.draining = True
        if self._handlers:
            logger.info("draining: %d requests are open", len(self._handlers))
            await asyncio.wait(self._handlers, timeout=grace_s)
        if left := list(self._handlers):
            logger.warning("draining: cutting %d requests short", len(left))
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=FAREWELL_S)
        await self._stop()

    async def _stop(self) -> None:
        if not self._loops:
            return
        await self.dispatcher.flush()
        await _cancel_all(self._loops)
        self._loops = []
        await self.liveness.withdraw()
        await self._redis.aclose()
        await self._reader_redis.aclose()


def _client(url: str, timeout_s: float) -> redis.asyncio.Redis:
    """Never repeats a command by itself: a frame pushed twice is a request run twice."""
    return redis.asyncio.Redis.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
    )


async def _cancel_all(tasks: list[asyncio.Task[None]]) -> None:
    """A Redis reply that arrives in the same moment as a cancellation swallows it (asyncio's
    timeouts before Python 3.12), so it is repeated until it holds."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=CANCEL_AGAIN_S)


def _log_crash(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        logger.critical("%s stopped", task.get_name(), exc_info=error)
