"""Reads the events of one neuron for this gateway and puts them into request streams.

Each neuron has a stream, a reader and a connection of its own: a faulty neuron delays and fails its
own requests alone. Batches are numbered within each epoch of the neuron: a duplicate is dropped,
and a missing one fails that neuron's requests instead of continuing with a gap.

Read entries are deleted, since a neuron leaves only some MiB unread. While Redis does not answer,
readers wait: its data is not lost. When they give up, or it is back without this gateway's marker,
everything in flight fails, because the missed entries are unknown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Any

import msgspec
import redis
import redis.asyncio

from inference.gateway.background_loops import BackgroundLoops, SharedWork
from inference.gateway.request.answer_check import AnswerFaultError
from inference.gateway.request.event_stream import RequestStream, RequestStreams, events_lost
from inference.logs import ThrottledLog
from inference.protocol import keys
from inference.protocol.events import EVENT_BATCH_FIELD, EventBatch, decode_event_batch
from inference.redis_link import (
    REDIS_BACKOFF,
    RedisLink,
    RedisOutage,
    ReplyTooLargeError,
    redis_unavailable,
)

logger = logging.getLogger(__name__)

BLOCK_MS = 500
"""Half the poll interval of held requests, which relies on the reader having caught up."""
IDLE_BLOCK_MS = 2000
"""While no request is open."""
MAX_ENTRIES_A_READ = 32
MAX_ENTRY_BYTES = 1024 * 1024
GRAVE_PAUSE_S = 0.2
"""The time to shut out a neuron: each read of its entries makes Redis buffer as much again."""
EVENTS_A_TURN = 1024
BYTES_A_TURN = 256 * 1024
"""Then consumers and other tasks run: after a pause there may be more than a stream can queue."""
TRIM_AFTER_BYTES = 1024 * 1024
"""An eighth of the unread limit, so that a neuron hardly ever waits."""
MAX_UNKNOWN_BYTES = 64 * 1024 * 1024
UNKNOWN_WITHIN_S = 60.0
"""An honest neuron writes events of unknown requests only for those that ended meanwhile."""
LOG_INTERVAL_S = 10.0

Entry = tuple[bytes, dict[bytes, bytes]]


OnFault = Callable[..., None]
"""Takes the neuron and the fault. ``is_grave``: once is enough to shut the neuron out."""


class EventReader:
    def __init__(
        self,
        link: RedisLink,
        *,
        neuron: str,
        gateway_id: str,
        streams: RequestStreams,
        outage: RedisOutage,
        on_fault: OnFault,
    ) -> None:
        self.neuron = neuron
        self.key = keys.events_key(neuron, gateway_id)
        self._redis = link
        self._streams = streams
        self._outage = outage
        self._on_fault = on_fault
        self._epoch = ""
        self._next_sequence_number = 0
        self._num_losses = 0
        self._log = ThrottledLog(logger, logging.ERROR, interval_s=LOG_INTERVAL_S)
        self._untrimmed_bytes = 0
        self._unknown_bytes = 0
        self._unknown_since_s = 0.0
        self.last_entry_id = keys.EVENTS_FIRST_ENTRY_ID
        self.caught_up_s = 0.0
        self.is_made = False
        self.seen_s = asyncio.get_running_loop().time()
        self._loops = BackgroundLoops()

    def begin(self) -> None:
        self.is_made = True
        if not self._loops.are_running:
            self._loops.begin(f"events of {self.neuron}", self.run)

    async def close(self) -> None:
        await self._loops.stop()
        await self._redis.aclose()

    async def run(self) -> None:
        num_failures = 0
        while True:
            try:
                await self._read_and_deliver()
                num_failures = 0
                continue
            except (redis.RedisError, OSError) as error:
                if str(error).startswith("WRONGTYPE"):
                    self._on_fault(self.neuron, "its events are no stream")
                else:
                    self._outage.unanswered(error)
            except Exception:
                logger.exception("reading the events of %s failed", self.neuron)
                self._fail_its_requests()
            num_failures += 1
            await asyncio.sleep(REDIS_BACKOFF.wait_s(num_failures))

    def stream_is_gone(self) -> None:
        """``upkeep`` makes another one."""
        self.is_made = False
        self._num_losses += 1
        self._epoch = ""
        self.last_entry_id = keys.EVENTS_FIRST_ENTRY_ID
        self._fail_its_requests()

    async def _read_and_deliver(self) -> None:
        num_losses, asked_s = self._num_losses, asyncio.get_running_loop().time()
        try:
            reply: Any = await self._redis.xread(
                {self.key: self.last_entry_id},
                count=MAX_ENTRIES_A_READ,
                block=BLOCK_MS if len(self._streams) else IDLE_BLOCK_MS,
            )
        except ReplyTooLargeError:
            await self._grave_fault("its events are too large to be read at once")
            await self._redis.command("UNLINK", self.key)
            self.stream_is_gone()
            return
        self._outage.answered()
        if num_losses != self._num_losses:
            return  # belongs to the previous stream; the new one is read from its start
        entries: list[Entry] = reply[0][1] if reply else []
        if entries:
            self.last_entry_id = entries[-1][0].decode()
            await self._deliver_all(entries)
            await self._trim()
        if len(entries) < MAX_ENTRIES_A_READ:
            self.caught_up_s = asked_s

    async def _trim(self) -> None:
        if self._untrimmed_bytes >= TRIM_AFTER_BYTES:
            self._untrimmed_bytes = 0
            await self._redis.command("XTRIM", self.key, "MINID", "~", self.last_entry_id)

    async def _deliver_all(self, entries: list[Entry]) -> None:
        num_events = num_bytes = 0
        for _, fields in entries:
            try:
                data = fields[EVENT_BATCH_FIELD]
                self._untrimmed_bytes += len(data)
                if len(data) > MAX_ENTRY_BYTES:
                    await self._grave_fault("an entry of its events is too large")
                batch = decode_event_batch(data)
            except (KeyError, msgspec.DecodeError) as error:
                what = f"an entry of its events does not decode: {error!s:.200}"
                self._on_fault(self.neuron, what)
                continue
            self.deliver(batch, len(data))
            num_events += 1 + len(batch.events)
            num_bytes += len(data)
            if num_events >= EVENTS_A_TURN or num_bytes >= BYTES_A_TURN:
                num_events = num_bytes = 0
                await asyncio.sleep(0)

    def deliver(self, batch: EventBatch, num_bytes: int) -> None:
        is_same_epoch = batch.epoch == self._epoch
        expected = self._next_sequence_number
        if is_same_epoch and batch.sequence_number < expected:
            logger.debug("%s: batch %d came again", self.neuron, batch.sequence_number)
            return
        self._epoch = batch.epoch
        self._next_sequence_number = batch.sequence_number + 1
        if is_same_epoch and batch.sequence_number != expected:
            number = batch.sequence_number
            self._log.log("gap", f"{self.neuron}: batch {number} came where {expected} was due")
            self._streams.fail_where(
                lambda stream: self._serves(stream) and stream.epoch == batch.epoch, events_lost()
            )
        bytes_an_event = num_bytes // max(1, len(batch.events))
        for event in batch.events:
            stream = self._streams.get(event.request_id)
            if stream is None:
                self._count_unknown(bytes_an_event)
                continue
            if stream.neuron != self.neuron:
                what = "it answered a request that another neuron serves"
                self._on_fault(self.neuron, what)
                continue
            stream.epoch = batch.epoch
            try:
                stream.put(event, bytes_an_event)
            except AnswerFaultError as error:
                what = f"its answer to {event.request_id} has {error}"
                self._on_fault(self.neuron, what)

    def _count_unknown(self, num_bytes: int) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._unknown_since_s > UNKNOWN_WITHIN_S:
            self._unknown_since_s, self._unknown_bytes = now_s, 0
        self._unknown_bytes += num_bytes
        if self._unknown_bytes > MAX_UNKNOWN_BYTES:
            self._unknown_bytes = 0
            what = (
                f"it wrote {MAX_UNKNOWN_BYTES >> 20} MiB of events for requests that are not here"
            )
            self._on_fault(self.neuron, what, is_grave=True)

    def _serves(self, stream: RequestStream) -> bool:
        """Also streams that are not accepted yet: the missing event may be the acceptance."""
        return stream.neuron == self.neuron

    def _fail_its_requests(self) -> None:
        self._streams.fail_where(self._serves, events_lost())

    async def _grave_fault(self, what: str) -> None:
        self._on_fault(self.neuron, what, is_grave=True)
        await asyncio.sleep(GRAVE_PAUSE_S)


IDLE_LIMIT_S = 60.0


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
        self._readers: dict[str, EventReader] = {}
        self._making = SharedWork(self._make_missing)

    async def ensure(self, neuron: str) -> None:
        """Raises ``ServiceUnavailableError``."""
        reader = self._readers.get(neuron)
        if reader is None:
            reader = self._readers[neuron] = EventReader(
                self._make_link(),
                neuron=neuron,
                gateway_id=self._gateway_id,
                streams=self._streams,
                outage=self._outage,
                on_fault=self._on_fault,
            )
        while not reader.is_made:
            reader.seen_s = asyncio.get_running_loop().time()
            await self._making.join()

    @property
    def neurons(self) -> frozenset[str]:
        return frozenset(self._readers)

    def caught_up_s(self, neuron: str) -> float:
        reader = self._readers.get(neuron)
        return 0.0 if reader is None else reader.caught_up_s

    def redis_lost_everything(self) -> None:
        logger.error("Redis has lost what it held: open requests fail")
        self._fail_everything()
        for reader in self._readers.values():
            reader.stream_is_gone()

    async def upkeep(self, neurons: Collection[str]) -> None:
        """Raises ``redis.RedisError``, ``ServiceUnavailableError``."""
        await self._close_idle(neurons)
        made = [reader for reader in self._readers.values() if reader.is_made]
        pipeline = self._redis.pipeline(transaction=False)
        for reader in made:
            pipeline.xtrim(reader.key, minid=reader.last_entry_id, approximate=True)
            pipeline.expire(reader.key, keys.EVENTS_EXPIRY_S)
        replies = await pipeline.execute(raise_on_error=False) if made else []
        for reader, trimmed, is_there in zip(made, replies[::2], replies[1::2], strict=True):
            if isinstance(trimmed, Exception) or not is_there:
                reader.stream_is_gone()
                self._on_fault(reader.neuron, "its stream of events is gone")
        await self._making.join()

    async def close(self) -> None:
        self._outage.close()
        await self._making.finish()
        readers, self._readers = list(self._readers.values()), {}
        for reader in readers:
            await reader.close()
        if not readers:
            return
        try:
            await self._redis.delete(*(reader.key for reader in readers))
        except (redis.RedisError, OSError) as error:
            logger.info("streams of events are left to expire: %s", error)

    async def _make_missing(self) -> None:
        missing = [reader for reader in self._readers.values() if not reader.is_made]
        if not missing:
            return
        pipeline = self._redis.pipeline(transaction=True)
        for reader in missing:
            pipeline.unlink(reader.key)
            pipeline.xadd(reader.key, {b"": b""}, id=keys.EVENTS_FIRST_ENTRY_ID)
            pipeline.expire(reader.key, keys.EVENTS_EXPIRY_S)
        try:
            await pipeline.execute()
        except (redis.RedisError, OSError) as error:
            raise redis_unavailable() from error
        for reader in missing:
            reader.begin()

    async def _close_idle(self, neurons: Collection[str]) -> None:
        now_s = asyncio.get_running_loop().time()
        serving = {stream.neuron for stream in self._streams}
        for neuron, reader in list(self._readers.items()):
            if neuron in neurons or neuron in serving:
                reader.seen_s = now_s
            elif now_s - reader.seen_s > IDLE_LIMIT_S:
                del self._readers[neuron]
                await self._making.finish()
                await reader.close()

    def _fail_everything(self) -> None:
        self._streams.fail_where(lambda _: True, redis_unavailable())
