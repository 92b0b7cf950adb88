"""The one reader of this gateway's event stream in Redis: fans batches out to request streams.

    XREAD BLOCK helexa:gateway:<id>:events ─▶ EventBatch ─▶ RequestStream.put

Redis may lose what it holds, so batches are counted for each life of each neuron; where one is
missing, whatever that neuron is serving fails rather than go on with a hole in it. When Redis is
lost everything in flight fails, because nobody can say what was missed.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
import redis
import redis.asyncio

from inference.gateway.dispatch import redis_unavailable
from inference.gateway.streams import RequestStream, RequestStreams, events_lost
from inference.protocol import keys
from inference.protocol.events import EVENT_BATCH_FIELD, EventBatch, decode_event_batch

logger = logging.getLogger(__name__)

BLOCK_MS = 1000
MAX_ENTRIES_A_READ = 512
FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 2.0


class EventReader:
    """``client`` must wait longer than ``BLOCK_MS`` for a reply and be nobody else's."""

    def __init__(
        self, client: redis.asyncio.Redis, gateway_id: str, streams: RequestStreams
    ) -> None:
        self._redis = client
        self._key = keys.gateway_events_key(gateway_id)
        self._streams = streams
        self._next_sequence_number: dict[tuple[str, str], int] = {}
        self.last_entry_id = "0-0"

    async def run(self) -> None:
        """Reads until cancelled."""
        backoff_s = FIRST_BACKOFF_S
        while True:
            try:
                entries = await self._read()
            except (redis.RedisError, OSError) as error:
                logger.warning("lost Redis while reading events: %s", error)
                self._lose_everything()
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)
            except Exception:
                logger.exception("reading events failed")
                self._lose_everything()
                await asyncio.sleep(MAX_BACKOFF_S)
            else:
                backoff_s = FIRST_BACKOFF_S
                self._deliver_all(entries)

    async def _read(self) -> list[tuple[bytes, dict[bytes, bytes]]]:
        reply: Any = await self._redis.xread(
            {self._key: self.last_entry_id}, count=MAX_ENTRIES_A_READ, block=BLOCK_MS
        )
        if not reply:
            return []
        entries: list[tuple[bytes, dict[bytes, bytes]]] = reply[0][1]
        self.last_entry_id = entries[-1][0].decode()
        return entries

    def _deliver_all(self, entries: list[tuple[bytes, dict[bytes, bytes]]]) -> None:
        for entry_id, fields in entries:
            try:
                batch = decode_event_batch(fields[EVENT_BATCH_FIELD])
            except (KeyError, msgspec.DecodeError) as error:
                logger.error("event entry %s does not decode: %s", entry_id, error)
                continue
            self.deliver(batch)

    def deliver(self, batch: EventBatch) -> None:
        life = (batch.neuron, batch.epoch)
        expected = self._next_sequence_number.get(life)
        self._next_sequence_number[life] = batch.sequence_number + 1
        if expected is None:
            self._forget_earlier_lives(batch)
        elif batch.sequence_number != expected:
            logger.error(
                "%s: batch %d came where %d was due", life, batch.sequence_number, expected
            )
            self._streams.fail_where(lambda stream: _is_served_by(stream, batch), events_lost())
        for event in batch.events:
            stream = self._streams.get(event.request_id)
            if stream is not None:
                stream.epoch = batch.epoch
                stream.put(event)

    def _forget_earlier_lives(self, batch: EventBatch) -> None:
        for neuron, epoch in list(self._next_sequence_number):
            if neuron == batch.neuron and epoch != batch.epoch:
                del self._next_sequence_number[neuron, epoch]

    def _lose_everything(self) -> None:
        self._next_sequence_number.clear()
        self._streams.fail_where(lambda _: True, redis_unavailable())


def _is_served_by(stream: RequestStream, batch: EventBatch) -> bool:
    """Streams that have not been accepted yet may have lost just that, so they count too."""
    return stream.neuron == batch.neuron and stream.epoch == batch.epoch
