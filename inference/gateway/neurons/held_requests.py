"""Reconciles open requests with each neuron's list: fails the lost, cancels the stale.

    every second     each neuron's list of requests ───┬─ open here, not held there   fails
                                                     └─ held there, not open here   cancelled again

The cure for every message that was lost, whatever lost it: a submit, a cancel, the last event of an
answer. Belongs to one event loop; must not know HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Iterable

import msgspec
import redis
import redis.asyncio

from fleet.live.neuron_reads import NeuronValueError, fields_read, run_reads_async
from inference.gateway.redis.inbox import Dispatcher
from inference.gateway.redis.readers_by_neuron import EventReaders
from inference.gateway.request.event_stream import RequestStream, RequestStreams, request_lost
from inference.logs.throttled import ThrottledLog
from inference.protocol import keys
from inference.protocol.held import (
    MAX_HELD_BYTES,
    NO_GATEWAY,
    HeldRequests,
    decode_held_requests,
)
from inference.redis_link import redis_unavailable

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 1.0
MISSES_UNTIL_LOST = 5
"""The number of lists in a row that must lack a request until it is lost. The first list may be
older than the submit, the second made just as it came. By the third the neuron has drained its
inbox since, and its last events are in Redis; the reader has the time of two more looks to deliver
those."""
SIGHTINGS_UNTIL_CANCELLED = 2
"""The number of lists in a row that must have a request until it is cancelled: the first list may
be older than the end that the gateway has received."""


MAX_ID_CHARACTERS = 64
MAX_SIGHTINGS = 512


class HeldRequestsWatch:
    def __init__(
        self,
        client: redis.asyncio.Redis,
        gateway_id: str,
        streams: RequestStreams,
        dispatcher: Dispatcher,
        readers: EventReaders,
    ) -> None:
        self._redis = client
        self._gateway_id = gateway_id
        self._streams = streams
        self._dispatcher = dispatcher
        self._readers = readers
        self._last_seen: dict[str, tuple[str, int]] = {}
        self._looked_s = deque([0.0, 0.0], maxlen=2)
        self._num_sightings: Counter[tuple[str, str]] = Counter()
        self._log = ThrottledLog(logger, logging.WARNING)
        self._cancels_log = ThrottledLog(logger, logging.INFO, interval_s=10.0, max_messages=5)

    async def look(self, neurons: Iterable[str]) -> None:
        names = sorted({*neurons, *(stream.neuron for stream in self._streams)})
        lists = await self._read(names)
        looked_s = self._looked_s[0]
        self._looked_s.append(asyncio.get_running_loop().time())
        sightings: Counter[tuple[str, str]] = Counter()
        for neuron in names:
            held = lists[neuron]
            if held is None or self._last_seen.get(neuron) == (held.epoch, held.beat):
                continue
            self._last_seen[neuron] = (held.epoch, held.beat)
            has_caught_up = self._readers.caught_up_s(neuron) > looked_s
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
