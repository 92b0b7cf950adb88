"""Publishes that this gateway is alive, and watches the neurons' heartbeats and held requests.

    Liveness           every second   SET helexa:gateway:<id>:alive, upkeep of the event streams
                       every 250 ms   heartbeats ─▶ FleetSnapshot ─▶ requests on a lost neuron fail
                                      (every second while no request is open)
    HeldRequestsWatch  every second   each neuron's list of requests ─┬─ open here, not held: fails
                                                                      └─ held, not open: cancelled

The lists repair every lost message: a submit, a cancel, the last event of an answer. While Redis
hangs, requests are placed by the last snapshot. After that every heartbeat has expired: neurons
count as online until they have had the time to beat. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import msgspec
import redis
import redis.asyncio

from fleet.errors import SnapshotUnavailableError
from fleet.live.reading import (
    fields_read,
    hash_read,
    read_snapshot,
    run_reads_async,
)
from fleet.live.reports import NeuronValueError
from fleet.live.snapshot import Absences, FleetSnapshot
from inference.gateway.background_loops import SharedWork
from inference.gateway.redis.event_reader import EventReaders
from inference.gateway.redis.inbox import Dispatcher
from inference.gateway.request.event_stream import (
    RequestStream,
    RequestStreams,
    neuron_lost,
    request_lost,
)
from inference.logs import ThrottledLog
from inference.protocol import keys
from inference.protocol.delivery import (
    MAX_HELD_BYTES,
    NO_GATEWAY,
    HeldRequests,
    decode_held_requests,
    decode_marks,
)
from inference.protocol.keys import Continuity
from inference.redis_link import redis_unavailable
from inference.wire.errors import ServiceUnavailableError

logger = logging.getLogger(__name__)

SNAPSHOT_AGE_S = 0.2
WATCH_INTERVAL_S, IDLE_WATCH_INTERVAL_S = 0.25, 1.0
MAX_MARKS_BYTES = 256 * 1024
"""By Redis' MEMORY USAGE: some ten requests of 200 bytes each."""
LOOK_INTERVAL_S, IDLE_LOOK_INTERVAL_S = 1.0, 5.0
IDLE_AFTER_S = 10.0
"""Since the last open request: until then a neuron may have missed that it has ended."""
MISSES_UNTIL_LOST = 5
"""How many consecutive lists must lack a request until it is lost. The first list may be older than
the submit, the second made just as it came. By the third the neuron has drained its inbox since,
and its last events are in Redis; the reader has two more polls to deliver those."""
SIGHTINGS_UNTIL_CANCELLED = 2
"""How many consecutive lists must contain a request until it is cancelled: the first may be older
than the end that the gateway has received."""
MAX_ID_CHARACTERS = 64
MAX_SIGHTINGS = 512
FAULT_LOG_S = 10.0
FAULT_WINDOW_S = 60.0
MAX_FAULTS = 30
"""A neuron with a broken build fails no more requests than these."""
MAX_NEURONS = 2000


class HeldRequestsWatch:
    def __init__(
        self,
        client: redis.asyncio.Redis,
        gateway_id: str,
        streams: RequestStreams,
        dispatcher: Dispatcher,
        readers: EventReaders,
        neuron_names: Callable[[], list[str]],
    ) -> None:
        self._redis = client
        self._gateway_id = gateway_id
        self._streams = streams
        self._neuron_names = neuron_names
        self._dispatcher = dispatcher
        self._readers = readers
        self._last_seen: dict[str, tuple[str, int]] = {}
        self._polled_s = deque([0.0, 0.0], maxlen=2)
        self._in_use_s = float("-inf")
        self._num_sightings: Counter[tuple[str, str]] = Counter()
        self._log = ThrottledLog(logger, logging.WARNING)
        self._cancels_log = ThrottledLog(logger, logging.INFO, interval_s=10.0, max_messages=5)

    async def look_if_due(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if len(self._streams) or self._num_sightings:
            self._in_use_s = now_s
        is_idle = now_s - self._in_use_s >= IDLE_AFTER_S
        if not is_idle or now_s - self._polled_s[-1] >= IDLE_LOOK_INTERVAL_S:
            await self.look(self._neuron_names())

    async def look(self, neurons: Iterable[str]) -> None:
        """Raises ``ServiceUnavailableError`` when Redis does not answer."""
        names = sorted({*neurons, *(stream.neuron for stream in self._streams)})
        lists = await self._read(names)
        polled_s = self._polled_s[0]
        self._polled_s.append(asyncio.get_running_loop().time())
        sightings: Counter[tuple[str, str]] = Counter()
        for neuron in names:
            held = lists[neuron]
            if held is None or self._last_seen.get(neuron) == (held.epoch, held.beat):
                continue
            self._last_seen[neuron] = (held.epoch, held.beat)
            has_caught_up = self._readers.caught_up_s(neuron) > polled_s
            self._fail_the_missing(neuron, held, has_caught_up)
            sightings += self._sightings(neuron, held)
        self._num_sightings = sightings

    async def _read(self, names: list[str]) -> dict[str, HeldRequests | None]:
        fields = [NO_GATEWAY, self._gateway_id]
        reads = [
            fields_read(keys.held_key(name), fields, max_bytes=MAX_HELD_BYTES) for name in names
        ]
        try:
            replies = await run_reads_async(self._redis, reads)
        except (redis.RedisError, OSError) as error:
            raise redis_unavailable() from error
        return {name: self._decode(name, reply) for name, reply in zip(names, replies, strict=True)}

    def _decode(
        self, neuron: str, reply: list[bytes | None] | NeuronValueError
    ) -> HeldRequests | None:
        try:
            if isinstance(reply, NeuronValueError):
                raise reply
            of_nobody, ours = reply
            data = ours if ours is not None else of_nobody
            return None if data is None else decode_held_requests(data)
        except (msgspec.DecodeError, NeuronValueError) as error:
            self._log.log(neuron, f"ignoring the requests that {neuron} lists as held: {error}")
            return None

    def _fail_the_missing(self, neuron: str, held: HeldRequests, has_caught_up: bool) -> None:
        known = frozenset(held.request_ids)
        for stream in self._streams:
            if not _is_of(stream, neuron, held.epoch):
                continue
            if stream.request_id in known:
                stream.num_misses = 0
                continue
            if held.is_behind:
                continue
            stream.num_misses += 1
            if stream.num_misses >= MISSES_UNTIL_LOST and has_caught_up:
                logger.error("request %s is lost: %s has it no more", stream.request_id, neuron)
                stream.lose(request_lost(neuron))

    def _sightings(self, neuron: str, held: HeldRequests) -> Counter[tuple[str, str]]:
        sightings: Counter[tuple[str, str]] = Counter()
        for request_id in held.request_ids:
            if len(request_id) > MAX_ID_CHARACTERS:
                continue  # no gateway makes such ids
            stream = self._streams.get(request_id)
            if stream is not None and not stream.ended:
                continue
            num_sightings = self._num_sightings[neuron, request_id] + 1
            sightings[neuron, request_id] = num_sightings
            if len(sightings) >= MAX_SIGHTINGS:
                break
            if num_sightings >= SIGHTINGS_UNTIL_CANCELLED:
                self._cancels_log.log(neuron, f"cancelling {request_id}: {neuron} still has it")
                self._dispatcher.cancel_soon(neuron, request_id)
        return sightings


def _is_of(stream: RequestStream, neuron: str, epoch: str) -> bool:
    return (
        stream.neuron == neuron
        and stream.epoch == epoch
        and stream.is_submitted
        and not stream.ended
    )


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
        """Call first: neurons drop dead gateways' requests. Raises ``ServiceUnavailableError``."""
        if not self._announced:
            await self.announce()

    async def withdraw(self) -> None:
        await self._announcing.finish()
        try:
            await self._redis.delete(self._alive_key, self._marker_key)
        except (redis.RedisError, OSError) as error:
            logger.info("the gateway's keys were not deleted from Redis: %s", error)

    async def snapshot(self) -> FleetSnapshot:
        """Raises ``ServiceUnavailableError``."""
        age_s = asyncio.get_running_loop().time() - self._snapshot_read_s
        if self._snapshot is not None and age_s <= SNAPSHOT_AGE_S:
            return self._snapshot
        return await self._refreshing.join()

    @property
    def latest(self) -> FleetSnapshot | None:
        return self._snapshot if self._is_answering else None

    async def placing_snapshot(self) -> FleetSnapshot:
        """Raises ``ServiceUnavailableError``."""
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
        """Raises ``ServiceUnavailableError``."""
        read = hash_read(keys.preparing_key(neuron), max_bytes=MAX_MARKS_BYTES)
        try:
            (found,) = await run_reads_async(self._redis, [read])
        except (redis.RedisError, OSError) as error:
            raise redis_unavailable() from error
        return {} if isinstance(found, NeuronValueError) else decode_marks(found)

    async def announce(self) -> None:
        await self._announcing.join()

    async def watch(self) -> None:
        age_s = asyncio.get_running_loop().time() - self._snapshot_read_s
        if len(self._streams) or age_s > IDLE_WATCH_INTERVAL_S - WATCH_INTERVAL_S / 2:
            await self.snapshot()

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
        before = () if self._snapshot is None else self._snapshot.neurons
        newly_silent = [view for view in before if snapshot.neuron(view.name) is None]
        if newly_silent and self._continuity.is_settled(now_s):
            # Redis may have restarted empty within a moment: this gateway's marker shows it.
            await self._announcing.join()
            self._continuity.answered(now_s)
        if not self._continuity.is_settled(now_s):
            neurons = sorted([*snapshot.neurons, *newly_silent], key=lambda view: view.name)
            snapshot = replace(snapshot, neurons=tuple(neurons))
        snapshot = self._absences.noted(snapshot, now_s)
        self._snapshot = snapshot
        self._snapshot_read_s = now_s
        self._fail_the_lost(snapshot)
        return snapshot

    def _fail_the_lost(self, snapshot: FleetSnapshot) -> None:
        """An unknown epoch is no failure: a new instance's events may precede its heartbeat."""
        ended, self._epochs = self._epochs, {view.name: view.epoch for view in snapshot.neurons}
        for stream in self._streams:
            current = self._epochs.get(stream.neuron)
            if current is None or ended.get(stream.neuron) == stream.epoch != current:
                stream.lose(neuron_lost(stream.neuron))


@dataclass(slots=True)
class _FaultRecord:
    window_began_s: float
    num_faults: int = 0
    is_reported: bool = False


class NeuronConduct:
    """Too many messages in a minute that no honest neuron writes, or a grave one, shut it out."""

    def __init__(
        self,
        on_cut_off: Callable[[str, str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_cut_off = on_cut_off
        self._clock = clock
        self._log = ThrottledLog(logger, logging.ERROR, interval_s=FAULT_LOG_S, clock=clock)
        self._records: dict[str, _FaultRecord] = {}

    def fault(self, neuron: str, what: str, *, is_grave: bool = False) -> None:
        now_s = self._clock()
        record = self._record(neuron, now_s)
        record.num_faults += 1
        self._log.log(neuron, f"neuron {neuron}: {what}")
        if record.is_reported or not (is_grave or record.num_faults > MAX_FAULTS):
            return
        record.is_reported = True
        times = "" if is_grave else f", the last of {record.num_faults} faults in a minute"
        self._on_cut_off(neuron, f"{what}{times}")

    def _record(self, neuron: str, now_s: float) -> _FaultRecord:
        record = self._records.get(neuron)
        if record is None or now_s - record.window_began_s > FAULT_WINDOW_S:
            record = self._records[neuron] = _FaultRecord(window_began_s=now_s)
            while len(self._records) > MAX_NEURONS:
                del self._records[next(iter(self._records))]
        return record
