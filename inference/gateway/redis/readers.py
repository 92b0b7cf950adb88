"""The readers of this gateway, one for each neuron that it sends requests to.

    ensure(neuron) ─▶ its stream is made, its reader runs ─▶ … ─▶ idle for a while: closed
    every second      trim the read entries, keep the streams from expiring, remake a lost one

While Redis does not answer, readers wait: its data is not lost. When they give up, or it is back
without this gateway's marker, everything in flight fails, because the missed entries are unknown. A
single missing stream was deleted by its neuron, and fails that one's requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass

import redis
import redis.asyncio

from inference.gateway.background_loops import BackgroundLoops, SharedWork
from inference.gateway.redis.event_reader import EventReader, OnFault
from inference.gateway.request.event_stream import RequestStreams
from inference.protocol import keys
from inference.redis_link import RedisLink, RedisOutage, redis_unavailable

logger = logging.getLogger(__name__)

IDLE_LIMIT_S = 60.0


@dataclass(slots=True)
class _Running:
    reader: EventReader
    link: RedisLink
    loops: BackgroundLoops
    making: SharedWork[None]
    is_made: bool = False
    seen_s: float = 0.0


class EventReaders:
    def __init__(
        self,
        client: redis.asyncio.Redis,
        make_link: Callable[[], RedisLink],
        gateway_id: str,
        streams: RequestStreams,
        *,
        stall_limit_s: float,
        on_fault: OnFault,
    ) -> None:
        self._redis = client
        self._make_link = make_link
        self._gateway_id = gateway_id
        self._streams = streams
        self._outage = RedisOutage(stall_limit_s, self._fail_everything)
        self._on_fault = on_fault
        self._running: dict[str, _Running] = {}

    async def ensure(self, neuron: str) -> None:
        """Raises ``ServiceUnavailableError``."""
        running = self._running.get(neuron) or self._start(neuron)
        if not running.is_made:
            await running.making.join()

    @property
    def neurons(self) -> frozenset[str]:
        return frozenset(self._running)

    def caught_up_s(self, neuron: str) -> float:
        running = self._running.get(neuron)
        return 0.0 if running is None else running.reader.caught_up_s

    def redis_lost_everything(self) -> None:
        logger.error("Redis has lost what it held: open requests fail")
        self._fail_everything()
        for running in self._running.values():
            running.is_made = False
            running.reader.stream_is_gone()

    async def upkeep(self, neurons: Collection[str]) -> None:
        """Raises ``redis.RedisError``."""
        await self._close_idle(neurons)
        made = [running for running in self._running.values() if running.is_made]
        pipeline = self._redis.pipeline(transaction=False)
        for running in made:
            reader = running.reader
            pipeline.xtrim(reader.key, minid=reader.last_entry_id, approximate=True)
            pipeline.expire(reader.key, keys.EVENTS_EXPIRY_S)
        replies = await pipeline.execute(raise_on_error=False) if made else []
        for running, trimmed, is_there in zip(made, replies[::2], replies[1::2], strict=True):
            if isinstance(trimmed, Exception) or not is_there:
                self._stream_lost(running)
        for running in self._running.values():
            if not running.is_made:
                await running.making.join()

    async def close(self) -> None:
        self._outage.close()
        stream_keys = [running.reader.key for running in self._running.values()]
        for neuron in list(self._running):
            await self._close(neuron)
        if not stream_keys:
            return
        try:
            await self._redis.delete(*stream_keys)
        except (redis.RedisError, OSError) as error:
            logger.info("streams of events are left to expire: %s", error)

    def _start(self, neuron: str) -> _Running:
        link, loops = self._make_link(), BackgroundLoops()
        reader = EventReader(
            link,
            neuron=neuron,
            gateway_id=self._gateway_id,
            streams=self._streams,
            outage=self._outage,
            on_fault=self._on_fault,
        )
        running = _Running(reader, link, loops, SharedWork(lambda: self._make(running)))
        running.seen_s = asyncio.get_running_loop().time()
        self._running[neuron] = running
        return running

    async def _make(self, running: _Running) -> None:
        key = running.reader.key
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.unlink(key)
        pipeline.xadd(key, {b"": b""}, id=keys.EVENTS_FIRST_ENTRY_ID)
        pipeline.expire(key, keys.EVENTS_EXPIRY_S)
        try:
            await pipeline.execute()
        except (redis.RedisError, OSError) as error:
            raise redis_unavailable() from error
        running.is_made = True
        if not running.loops.are_running:
            running.loops.begin(f"events of {running.reader.neuron}", running.reader.run)

    def _stream_lost(self, running: _Running) -> None:
        running.is_made = False
        running.reader.stream_is_gone()
        self._on_fault(running.reader.neuron, "its stream of events is gone")

    async def _close_idle(self, neurons: Collection[str]) -> None:
        now_s = asyncio.get_running_loop().time()
        serving = {stream.neuron for stream in self._streams}
        for neuron, running in list(self._running.items()):
            if neuron in neurons or neuron in serving:
                running.seen_s = now_s
            elif now_s - running.seen_s > IDLE_LIMIT_S:
                await self._close(neuron)

    async def _close(self, neuron: str) -> None:
        running = self._running.pop(neuron)
        await running.making.finish()
        await running.loops.stop()
        await running.link.aclose()

    def _fail_everything(self) -> None:
        self._streams.fail_where(lambda _: True, redis_unavailable())
