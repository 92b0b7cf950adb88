"""Liveness: publishes that this gateway is alive, and watches the neurons.

    every second     SET helexa:gateway:<id>:alive, upkeep of the streams of events
    every 250 ms     heartbeats ─▶ FleetSnapshot ─▶ requests on a neuron that is gone fail

The snapshot is kept for a moment, so that the hot path does not read Redis for each request; while
Redis stands still requests are placed by the last one. When Redis answers again every heartbeat has
expired: neurons count as there until they have had the time to beat.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

import redis
import redis.asyncio

from fleet.errors import SnapshotUnavailableError
from fleet.live.absences import Absences
from fleet.live.neuron_reads import NeuronValueError, hash_read, run_reads_async
from fleet.live.reading import read_snapshot
from fleet.live.snapshot import FleetSnapshot, NeuronView
from inference.gateway.background_loops import SharedWork
from inference.gateway.redis.readers_by_neuron import EventReaders
from inference.gateway.request.event_stream import RequestStreams, neuron_lost
from inference.protocol import keys
from inference.protocol.preparing import decode_marks
from inference.protocol.stalls import Continuity
from inference.redis_link import redis_unavailable
from inference.wire.errors import ServiceUnavailableError

logger = logging.getLogger(__name__)

SNAPSHOT_AGE_S = 0.2
WATCH_INTERVAL_S = 0.25
MAX_MARKS_BYTES = 256 * 1024
"""The memory of what a neuron is preparing, as Redis measures it: some ten requests of 200 bytes
each."""


class Liveness:
    def __init__(
        self,
        client: redis.asyncio.Redis,
        gateway_id: str,
        streams: RequestStreams,
        readers: EventReaders,
        *,
        stall_limit_s: float,
    ) -> None:
        self._redis = client
        self._stall_limit_s = stall_limit_s
        self._alive_key = keys.gateway_alive_key(gateway_id)
        self._marker_key = keys.gateway_marker_key(gateway_id)
        self._streams = streams
        self._readers = readers
        self._announced = False
        self._snapshot: FleetSnapshot | None = None
        self._snapshot_read_s = 0.0
        self._is_answering = True
        self._continuity = Continuity()
        self._absences = Absences()
        self._epochs: dict[str, str] = {}
        self._refreshing = SharedWork(self._refresh)
        self._announcing = SharedWork(self._announce)

    async def ensure_announced(self) -> None:
        """Neurons drop the requests of a gateway that is not alive, so it must be before it sends
        its first one. Raises ``ServiceUnavailableError``."""
        if not self._announced:
            await self._announcing.join()

    async def withdraw(self) -> None:
        await self._announcing.finish()
        try:
            await self._redis.delete(self._alive_key, self._marker_key)
        except (redis.RedisError, OSError) as error:
            logger.info("the gateway's keys were not deleted from Redis: %s", error)

    async def snapshot(self) -> FleetSnapshot:
        """Returns a snapshot at most ``SNAPSHOT_AGE_S`` old. Raises ``ServiceUnavailableError``."""
        age_s = asyncio.get_running_loop().time() - self._snapshot_read_s
        if self._snapshot is not None and age_s <= SNAPSHOT_AGE_S:
            return self._snapshot
        return await self._refreshing.join()

    @property
    def latest(self) -> FleetSnapshot | None:
        """The newest, from any thread; ``None`` while Redis does not answer."""
        return self._snapshot if self._is_answering else None

    async def placing_snapshot(self) -> FleetSnapshot:
        """Returns what ``snapshot`` does or, while Redis does not answer, the last one, up to the
        stall's limit. Raises ``ServiceUnavailableError``."""
        if self._is_answering:
            try:
                return await self.snapshot()
            except ServiceUnavailableError:
                self._is_answering = False
        age_s = asyncio.get_running_loop().time() - self._snapshot_read_s
        if self._snapshot is None or age_s > self._stall_limit_s:
            raise redis_unavailable()
        return self._snapshot

    def neuron_names(self) -> list[str]:
        return [] if self._snapshot is None else [view.name for view in self._snapshot.neurons]

    async def preparing(self, neuron: str) -> dict[str, str]:
        read = hash_read(keys.preparing_key(neuron), max_bytes=MAX_MARKS_BYTES)
        try:
            (found,) = await run_reads_async(self._redis, [read])
        except (redis.RedisError, OSError) as error:
            raise redis_unavailable() from error
        return {} if isinstance(found, NeuronValueError) else decode_marks(found)

    async def run_alive(self) -> None:
        await repeat(self._announcing.join, keys.GATEWAY_ALIVE_INTERVAL_S)

    async def run_watch(self) -> None:
        await repeat(self.snapshot, WATCH_INTERVAL_S)

    async def _announce(self) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.set(self._alive_key, b"1", ex=int(keys.GATEWAY_ALIVE_EXPIRY_S))
        pipeline.expire(self._marker_key, keys.EVENTS_EXPIRY_S)
        try:
            _, has_marker = await pipeline.execute()
            if not has_marker:
                if self._announced:
                    self._readers.redis_lost_everything()
                    self._continuity.interrupted()
                await self._redis.set(self._marker_key, b"1", ex=keys.EVENTS_EXPIRY_S)
            await self._readers.upkeep(self.neuron_names())
        except (redis.RedisError, OSError) as error:
            raise redis_unavailable() from error
        self._announced = True

    async def _refresh(self) -> FleetSnapshot:
        try:
            snapshot = await read_snapshot(self._redis, before=self._snapshot)
        except SnapshotUnavailableError as error:
            self._is_answering = False
            self._continuity.interrupted()
            raise redis_unavailable() from error
        now_s = asyncio.get_running_loop().time()
        self._is_answering = True
        self._continuity.answered(now_s)
        silenced = [] if self._snapshot is None else _silenced(snapshot, self._snapshot)
        if silenced and self._continuity.is_settled(now_s):
            # Maybe Redis went, and came back empty within a moment: this gateway's marker shows it.
            await self._announcing.join()
            self._continuity.answered(now_s)
        if not self._continuity.is_settled(now_s):
            snapshot = _with(snapshot, silenced)
        snapshot = self._absences.noted(snapshot, now_s)
        self._snapshot = snapshot
        self._snapshot_read_s = now_s
        self._fail_the_lost(snapshot)
        return snapshot

    def _fail_the_lost(self, snapshot: FleetSnapshot) -> None:
        """A life has ended when its heartbeat lapsed or the next one's is there. Events of a new
        life may be here before its heartbeat, so an epoch not seen yet is no reason to fail."""
        ended, self._epochs = self._epochs, {view.name: view.epoch for view in snapshot.neurons}
        for stream in self._streams:
            current = self._epochs.get(stream.neuron)
            if current is None or ended.get(stream.neuron) == stream.epoch != current:
                stream.lose(neuron_lost(stream.neuron))


def _silenced(snapshot: FleetSnapshot, before: FleetSnapshot) -> list[NeuronView]:
    return [view for view in before.neurons if snapshot.neuron(view.name) is None]


def _with(snapshot: FleetSnapshot, silenced: list[NeuronView]) -> FleetSnapshot:
    neurons = sorted([*snapshot.neurons, *silenced], key=lambda view: view.name)
    return replace(snapshot, neurons=tuple(neurons))


async def repeat(work: Callable[[], Awaitable[object]], interval_s: float) -> None:
    while True:
        try:
            await work()
        except ServiceUnavailableError as error:
            logger.debug("%s", error.message)
        except Exception:
            logger.exception("a round of %s failed", work)
        await asyncio.sleep(interval_s)
