"""The one reader of this gateway's event stream in Redis: fans batches out to request streams.

    XREAD BLOCK helexa:gateway:<id>:events ─▶ EventBatch ─▶ RequestStream.put

Batches are counted for each life of each neuron. One that comes again, because its neuron was not
told that Redis has it, is dropped; where one is missing, whatever that neuron is serving fails
rather than go on with a hole in it. A Redis that does not answer is waited for, since what it holds
is not lost; when it is given up, or has come back without this gateway's stream, everything in
flight fails, because nobody can say what was missed.

One read is bounded in entries, and neurons bound their entries in bytes. A read that is larger all
the same is asked again in smaller parts, and an entry that is too large alone is skipped: its
neuron's requests fail, as where a batch is missing.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
import redis

from inference.gateway.dispatch import redis_unavailable
from inference.gateway.outage import RedisOutage
from inference.gateway.redis_link import RedisLink, ReplyTooLargeError
from inference.gateway.streams import RequestStream, RequestStreams, events_lost
from inference.protocol import keys
from inference.protocol.events import EVENT_BATCH_FIELD, EventBatch, decode_event_batch

logger = logging.getLogger(__name__)

BLOCK_MS = 500
"""Twice between two looks at what neurons hold, which count on the reader having caught up."""
MAX_ENTRIES_A_READ = 32
"""Times what neurons bound an entry to: the most that one read brings from them."""
EVENTS_A_TURN = 1024
BYTES_A_TURN = 256 * 1024
"""Then consumers get to take theirs, and other tasks to run: after a pause there may be more than a
stream may hold."""
FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 1.0

NEXT_ENTRY_ID_SCRIPT = """
local entries = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', 1)
return entries[1] and entries[1][1]
"""
"""The id of the entry after the given one, without its contents."""

Entry = tuple[bytes, dict[bytes, bytes]]


class EventReader:
    """``link`` must wait longer than ``BLOCK_MS`` for a reply and be nobody else's."""

    def __init__(
        self,
        link: RedisLink,
        gateway_id: str,
        streams: RequestStreams,
        *,
        stall_limit_s: float,
    ) -> None:
        self._redis = link
        self._key = keys.gateway_events_key(gateway_id)
        self._streams = streams
        self._next_sequence_number: dict[tuple[str, str], int] = {}
        self._outage = RedisOutage(stall_limit_s, self._fail_everything)
        self._num_losses = 0
        self._max_entries = MAX_ENTRIES_A_READ
        self._next_entry_id = link.register_script(NEXT_ENTRY_ID_SCRIPT)
        self.last_entry_id = keys.EVENTS_FIRST_ENTRY_ID
        self.caught_up_s = 0.0
        """On the loop's clock: everything that was in the stream by then has been delivered."""

    async def run(self) -> None:
        """Reads until cancelled."""
        backoff_s = FIRST_BACKOFF_S
        try:
            while True:
                try:
                    await self._read_and_deliver()
                    backoff_s = FIRST_BACKOFF_S
                except (redis.RedisError, OSError) as error:
                    self._outage.unanswered(error)
                    await asyncio.sleep(backoff_s)
                    backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)
                except Exception:
                    logger.exception("reading events failed")
                    self._fail_everything()
                    await asyncio.sleep(MAX_BACKOFF_S)
        finally:
            self._outage.close()

    def stream_is_gone(self) -> None:
        """Redis has lost this gateway's stream, and what was in it: whatever is open fails, and the
        next stream is read from its beginning."""
        logger.error("Redis has lost this gateway's events: open requests fail")
        self._num_losses += 1
        self._next_sequence_number.clear()
        self.last_entry_id = keys.EVENTS_FIRST_ENTRY_ID
        self._fail_everything()

    async def _read_and_deliver(self) -> None:
        num_losses, asked_s = self._num_losses, asyncio.get_running_loop().time()
        max_entries = self._max_entries
        try:
            reply: Any = await self._redis.xread(
                {self._key: self.last_entry_id}, count=max_entries, block=BLOCK_MS
            )
        except ReplyTooLargeError:
            await self._read_less(max_entries)
            return
        self._outage.answered()
        if num_losses != self._num_losses:
            return  # asked of the stream before; what is in the new one is read again
        self._max_entries = min(2 * max_entries, MAX_ENTRIES_A_READ)
        entries: list[Entry] = reply[0][1] if reply else []
        if entries:
            self.last_entry_id = entries[-1][0].decode()
            await self._deliver_all(entries)
        if len(entries) < max_entries:
            self.caught_up_s = asked_s

    async def _read_less(self, max_entries: int) -> None:
        """Read that many entries in two halves from now on, or skip the one that is too large
        alone."""
        if max_entries > 1:
            self._max_entries = max_entries // 2
            return
        entry_id = await self._next_entry_id(keys=[self._key], args=[self.last_entry_id])
        if entry_id is not None:
            logger.error("event entry %s is too large and was skipped", entry_id.decode())
            self.last_entry_id = entry_id.decode()

    async def _deliver_all(self, entries: list[Entry]) -> None:
        num_events = num_bytes = 0
        for entry_id, fields in entries:
            try:
                data = fields[EVENT_BATCH_FIELD]
                batch = decode_event_batch(data)
            except (KeyError, msgspec.DecodeError) as error:
                logger.error("event entry %s does not decode: %s", entry_id, error)
                continue
            self.deliver(batch)
            num_events += len(batch.events)
            num_bytes += len(data)
            if num_events >= EVENTS_A_TURN or num_bytes >= BYTES_A_TURN:
                num_events = num_bytes = 0
                await asyncio.sleep(0)

    def deliver(self, batch: EventBatch) -> None:
        life = (batch.neuron, batch.epoch)
        expected = self._next_sequence_number.get(life)
        if expected is not None and batch.sequence_number < expected:
            logger.info("%s: batch %d came again", life, batch.sequence_number)
            return
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

    def _fail_everything(self) -> None:
        self._streams.fail_where(lambda _: True, redis_unavailable())


def _is_served_by(stream: RequestStream, batch: EventBatch) -> bool:
    """Streams that have not been accepted yet may have lost just that, so they count too."""
    return stream.neuron == batch.neuron and stream.epoch == batch.epoch
