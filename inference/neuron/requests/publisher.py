"""Events up to the gateways: one stream entry per gateway and engine step, one round trip for all.

    publish ─▶ outbox ─▶ XADD by the thread that came first ─┬─ acknowledged
                 ▲                                           ├─ no answer, or no such stream
                 └──────────── resender thread ◀─────────────┘

A batch is sent again under its sequence number until Redis has acknowledged it; its reader drops
duplicates. A gap in the numbers makes whatever follows it worthless, so a gateway's batches are
given up together. Their requests are passed to ``on_lost``: their gateway fails them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import redis

from inference.neuron.requests.batches import batches_within
from inference.neuron.requests.request_table import AddressedEvent
from inference.protocol.events import (
    EVENT_BATCH_FIELD,
    MAX_BATCH_BYTES,
    Event,
    EventBatch,
    decode_event_batch,
    encode_event_batch,
)
from inference.protocol.keys import EVENT_STREAM_MAX_ENTRIES, KEPT_AFTER_LIMIT_S, events_key
from inference.settings.storage import REDIS_STALL_S
from inference.supervised_threads import SupervisedThread

log = logging.getLogger(__name__)

DEAD_STREAM_EXPIRY_S = 60
BEHIND_AFTER_S = 0.5
RESEND_S = 0.1
OVERHEAD_BYTES = 4096
MAX_UNREAD_BYTES = 8 * 1024 * 1024
"""Unread bytes in one gateway's stream; more is sent when the gateway has read some."""
CROWDED_BYTES = MAX_UNREAD_BYTES // 2
"""From here on the writer counts what has been read, so that little traffic never waits for it."""
MAX_KEPT_BYTES = 64 * 1024 * 1024
"""For all gateways: half a minute of a thousand streams."""
MAX_TAKEN = 64
MAX_TAKEN_BYTES = 4 * 1024 * 1024
"""Redis answers this many well within a command's timeout."""


@dataclass(frozen=True, slots=True)
class _Batch:
    gateway_id: str
    data: bytes
    added_s: float


@dataclass(slots=True)
class _Outbox:
    batches: deque[_Batch] = field(default_factory=deque)
    num_bytes: int = 0
    is_blocked: bool = False
    """Its stream did not exist at the last try."""
    unread: deque[int] = field(default_factory=deque)
    """Bytes of each entry that Redis may still have, the oldest first."""
    unread_bytes: int = 0

    @property
    def is_crowded(self) -> bool:
        return bool(self.batches) and self.unread_bytes > CROWDED_BYTES

    def add(self, batch: _Batch) -> None:
        self.batches.append(batch)
        self.num_bytes += len(batch.data)

    def sendable(self) -> Iterator[_Batch]:
        """An entry of any size has room in an empty stream."""
        num_bytes = self.unread_bytes
        for batch in () if self.is_blocked else self.batches:
            num_bytes += len(batch.data)
            if num_bytes > MAX_UNREAD_BYTES and num_bytes > len(batch.data):
                return
            yield batch

    def acknowledge(self, batch: _Batch) -> None:
        """Only counts a batch that was given up meanwhile."""
        self.unread.append(len(batch.data))
        self.unread_bytes += len(batch.data)
        if self.batches and self.batches[0] is batch:
            self.batches.popleft()
            self.num_bytes -= len(batch.data)

    def count_read(self, num_entries: int) -> None:
        """``num_entries`` are in the stream; its gateway deletes the oldest first."""
        while len(self.unread) > num_entries:
            self.unread_bytes -= self.unread.popleft()

    def give_up(self) -> list[_Batch]:
        given_up, self.batches, self.num_bytes = self.batches, deque(), 0
        return list(given_up)


class EventPublisher:
    """``publish`` may be called by any thread; batches of one gateway leave in number order."""

    def __init__(
        self,
        client: redis.Redis,
        *,
        neuron: str,
        epoch: str,
        on_lost: Callable[[set[str]], None],
        keep_s: float = REDIS_STALL_S.default + KEPT_AFTER_LIMIT_S,
        max_kept_bytes: int = MAX_KEPT_BYTES,
    ) -> None:
        self._client = client
        self._neuron = neuron
        self._epoch = epoch
        self._on_lost = on_lost
        self._keep_s = keep_s
        self._max_kept_bytes = max_kept_bytes
        self._lock = threading.Lock()
        self._sent_some = threading.Condition(self._lock)
        self._outboxes: defaultdict[str, _Outbox] = defaultdict(_Outbox)
        self._next_number: defaultdict[str, int] = defaultdict(int)
        self._is_sending = False
        self._is_stalled = False
        """Redis did not answer: until it does, only the resender tries."""
        self._resender: SupervisedThread | None = None

    def publish(self, events: list[AddressedEvent]) -> None:
        """Waits for one round trip to Redis unless another thread is sending; with several entries
        also while half of what may be kept is unsent."""
        by_gateway: defaultdict[str, list[Event]] = defaultdict(list)
        for gateway_id, event in events:
            by_gateway[gateway_id].append(event)
        for gateway_id, its_events in by_gateway.items():
            if not self._add(gateway_id, its_events, max_bytes=MAX_BATCH_BYTES):
                for part in batches_within(MAX_BATCH_BYTES - OVERHEAD_BYTES, its_events):
                    self._wait_for_room()
                    self._add(gateway_id, part)
        if by_gateway:
            self._send()

    def retire(self, gateway_id: str) -> None:
        """The stream has no reader. Raises ``redis.RedisError``."""
        with self._lock:
            self._outboxes.pop(gateway_id, None)
        self._client.expire(events_key(self._neuron, gateway_id), DEAD_STREAM_EXPIRY_S)

    def gateway_ids(self) -> set[str]:
        with self._lock:
            return set(self._outboxes)

    def behind(self) -> list[str]:
        with self._lock:
            return self._older_than(BEHIND_AFTER_S)

    def flush(self, timeout_s: float) -> None:
        with self._sent_some:
            self._sent_some.wait_for(lambda: not self._num_unsent_bytes(), timeout_s)

    def _add(self, gateway_id: str, events: list[Event], *, max_bytes: int | None = None) -> bool:
        """``False``: as one entry they exceed ``max_bytes``, and were not added."""
        given_up: list[_Batch] = []
        with self._lock:
            number = self._next_number[gateway_id]
            data = encode_event_batch(
                EventBatch(epoch=self._epoch, sequence_number=number, events=events)
            )
            if max_bytes is not None and len(data) > max_bytes:
                return False
            self._next_number[gateway_id] = number + 1
            self._outboxes[gateway_id].add(_Batch(gateway_id, data, time.monotonic()))
            while self._num_unsent_bytes() > self._max_kept_bytes:
                given_up += max(self._outboxes.values(), key=lambda one: one.num_bytes).give_up()
        self._report_lost(given_up, "there are too many of them")
        return True

    def _wait_for_room(self) -> None:
        most = self._max_kept_bytes // 2
        with self._lock:
            has_room = self._num_unsent_bytes() <= most
        if not has_room:
            self._send()
            with self._sent_some:
                self._sent_some.wait_for(lambda: self._num_unsent_bytes() <= most, self._keep_s)

    def _send(self, *, is_resender: bool = False) -> None:
        """Send until nothing is left that can be sent, or Redis does not answer; not while another
        thread is sending. Until Redis answers again, only the resender tries."""
        with self._lock:
            if self._is_sending or (self._is_stalled and not is_resender):
                return
            self._is_sending = True
        try:
            while taken := self._take_or_leave():
                self._settle(taken, self._execute(taken))
        except (redis.RedisError, OSError) as error:
            with self._lock:
                self._leave(error)
        except BaseException as error:
            with self._lock:
                self._leave(error)
            raise

    def _take_or_leave(self) -> list[_Batch]:
        """Batches stay in their outboxes until acknowledged. Empty: another thread may send."""
        self._count_read()
        taken: list[_Batch] = []
        num_bytes = 0
        with self._lock:
            for batch in (one for outbox in self._outboxes.values() for one in outbox.sendable()):
                num_bytes += len(batch.data)
                if taken and (len(taken) == MAX_TAKEN or num_bytes > MAX_TAKEN_BYTES):
                    break
                taken.append(batch)
            if not taken:
                self._leave(error=None)
        return taken

    def _count_read(self) -> None:
        with self._lock:
            crowded = {name: one for name, one in self._outboxes.items() if one.is_crowded}
        if not crowded:
            return
        pipeline = self._client.pipeline(transaction=False)
        for gateway_id in crowded:
            pipeline.xlen(events_key(self._neuron, gateway_id))
        replies: list[Any] = pipeline.execute(raise_on_error=False)
        with self._lock:
            for outbox, reply in zip(crowded.values(), replies, strict=True):
                # A key of another type is reported by the next XADD.
                outbox.count_read(reply if isinstance(reply, int) else 0)

    def _execute(self, batches: list[_Batch]) -> list[object]:
        # Batches of one gateway go in or stay out together: its stream may be created between two
        # XADDs, and a batch must not go in where the one before it did not.
        has_several = len({batch.gateway_id for batch in batches}) < len(batches)
        pipeline = self._client.pipeline(transaction=has_several)
        for batch in batches:
            pipeline.xadd(
                events_key(self._neuron, batch.gateway_id),
                {EVENT_BATCH_FIELD: batch.data},
                maxlen=EVENT_STREAM_MAX_ENTRIES,
                approximate=True,
                nomkstream=True,
            )
        replies: list[object] = pipeline.execute(raise_on_error=False)
        return replies

    def _settle(self, batches: list[_Batch], replies: list[object]) -> None:
        refused: list[_Batch] = []
        problem: Exception | None = None
        with self._lock:
            for batch, reply in zip(batches, replies, strict=True):
                outbox = self._outboxes.get(batch.gateway_id)
                if outbox is None:
                    continue  # its gateway is dead
                if isinstance(reply, Exception):
                    problem = reply
                    refused += outbox.give_up()
                elif reply is None:
                    outbox.is_blocked = True
                else:
                    outbox.acknowledge(batch)
            self._sent_some.notify_all()
        self._report_lost(refused, str(problem))

    # The callers of these methods hold the lock.

    def _leave(self, error: BaseException | None) -> None:
        self._is_sending = False
        if error is not None and not self._is_stalled:
            log.error("events do not reach Redis: %s; kept for %.0f s", error, self._keep_s)
        if error is None and self._is_stalled:
            log.warning("events reach Redis again")
        self._is_stalled = error is not None
        if self._num_unsent_bytes() and self._resender is None:
            self._resender = SupervisedThread(self._resend, name="resender")
            self._resender.start()

    def _num_unsent_bytes(self) -> int:
        return sum(outbox.num_bytes for outbox in self._outboxes.values())

    def _older_than(self, seconds: float) -> list[str]:
        added_s = time.monotonic() - seconds
        return [
            gateway_id
            for gateway_id, outbox in self._outboxes.items()
            if outbox.batches and outbox.batches[0].added_s < added_s
        ]

    # The callers of these methods do not hold the lock.

    def _report_lost(self, batches: Iterable[_Batch], why: str) -> None:
        lost = {
            event.request_id for batch in batches for event in decode_event_batch(batch.data).events
        }
        if lost:
            log.error("events of %d requests are given up: %s", len(lost), why)
            self._on_lost(lost)

    def _resend(self) -> None:
        """Ends when nothing is left: the next thread that is needed is new."""
        while True:
            time.sleep(RESEND_S)
            with self._lock:
                overdue = [
                    batch
                    for gateway_id in self._older_than(self._keep_s)
                    for batch in self._outboxes[gateway_id].give_up()
                ]
                for outbox in self._outboxes.values():
                    outbox.is_blocked = False
                is_done = not self._num_unsent_bytes()
                if is_done:
                    self._resender, self._is_stalled = None, False
                    self._sent_some.notify_all()
            self._report_lost(overdue, f"Redis did not take them for {self._keep_s:.0f} s")
            if is_done:
                return
            self._send(is_resender=True)
