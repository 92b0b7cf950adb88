"""Events up to the gateways: one stream entry per gateway and engine step, one round trip for all.

    publish ─▶ Outboxes ─▶ XADD by the thread that came first ─┬─ acknowledged
                  ▲                                            ├─ no answer, or no such stream
                  └──────────── resender thread ◀──────────────┘

An event too large for one entry is split, and its publisher waits while much is unsent. The
bytes that a gateway has not read are bounded, so batches wait for a gateway that reads slowly too.

Owns the sequence numbers. A batch whose XADD was not acknowledged is resent under its number by a
thread that lives only while there are such batches; its reader drops duplicates. A batch that is
given up leaves a gap, which its reader sees as a loss. Its requests are passed to ``on_lost``,
because their gateways have failed them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import redis

from inference.backoff import Backoff
from inference.neuron.requests.outbox import MAX_KEPT_BYTES, Batch, Outboxes, batches_within
from inference.neuron.requests.request_table import AddressedEvent
from inference.protocol.events import (
    EVENT_BATCH_FIELD,
    MAX_BATCH_BYTES,
    Event,
    EventBatch,
    decode_event_batch,
    encode_event_batch,
)
from inference.protocol.keys import EVENT_STREAM_MAX_ENTRIES, events_key
from inference.protocol.stalls import KEPT_AFTER_LIMIT_S
from inference.settings.storage import REDIS_STALL_S
from inference.supervised_threads import SupervisedThread

log = logging.getLogger(__name__)


DEAD_STREAM_EXPIRY_S = 60
"""How long the stream of a gateway that stopped answering is kept."""
BEHIND_AFTER_S = 0.5
"""A batch that is on its way for longer makes its gateway one that is behind."""
RESEND_BACKOFF = Backoff(first_s=0.05, max_s=0.5)
OVERHEAD_BYTES = 4096
"""The bytes of an entry beside its events: more than its epoch and number take."""


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
        self._lock = threading.Lock()
        self._sent_some = threading.Condition(self._lock)
        self._max_waiting_bytes = max_kept_bytes // 2
        self._outboxes = Outboxes(max_bytes=max_kept_bytes)
        self._next_number: defaultdict[str, int] = defaultdict(int)
        self._is_sending = False
        self._is_stalled = False
        """Redis did not answer: until it does, only the resender tries."""
        self._has_sent = False
        """Whether anything was sent since the resender's last try."""
        self._resender: SupervisedThread | None = None

    def publish(self, events: list[AddressedEvent]) -> None:
        """Publish ``events``. Waits for one round trip to Redis unless another thread is sending;
        with more than one entry also while the outbox is half full."""
        if not events:
            return
        by_gateway: defaultdict[str, list[Event]] = defaultdict(list)
        for gateway_id, event in events:
            by_gateway[gateway_id].append(event)
        for gateway_id, its_events in by_gateway.items():
            if not self._add(gateway_id, its_events, max_bytes=MAX_BATCH_BYTES):
                for part in batches_within(MAX_BATCH_BYTES - OVERHEAD_BYTES, its_events):
                    self._wait_for_room()
                    self._add(gateway_id, part)
        self._send()

    def retire(self, gateway_id: str) -> None:
        """Delete the stream of a dead gateway, which has no reader. Raises ``redis.RedisError``."""
        with self._lock:
            self._outboxes.forget(gateway_id)
        self._client.expire(events_key(self._neuron, gateway_id), DEAD_STREAM_EXPIRY_S)

    def gateway_ids(self) -> set[str]:
        with self._lock:
            return self._outboxes.gateway_ids()

    def behind(self) -> list[str]:
        with self._lock:
            return self._outboxes.behind(time.monotonic() - BEHIND_AFTER_S)

    def flush(self, timeout_s: float) -> None:
        with self._sent_some:
            self._sent_some.wait_for(lambda: not self._outboxes, timeout_s)

    def _add(self, gateway_id: str, events: list[Event], *, max_bytes: int | None = None) -> bool:
        """``False``: as one entry they have more than ``max_bytes``, and were not added."""
        with self._lock:
            number = self._next_number[gateway_id]
            data = encode_event_batch(
                EventBatch(epoch=self._epoch, sequence_number=number, events=events)
            )
            if max_bytes is not None and len(data) > max_bytes:
                return False
            self._next_number[gateway_id] = number + 1
            self._outboxes.add(Batch(gateway_id, data, time.monotonic()))
            excess = self._outboxes.drop_excess()
        self._give_up(excess, "there are too many of them")
        return True

    def _wait_for_room(self) -> None:
        """Returns when less than half of what may be kept is unsent, or Redis has not taken it for
        as long as anything is kept."""
        give_up_s = time.monotonic() + self._keep_s
        while self._is_crowded() and (left_s := give_up_s - time.monotonic()) > 0:
            self._send()
            with self._sent_some:
                self._sent_some.wait_for(
                    lambda: not self._is_crowded(), min(left_s, RESEND_BACKOFF.max_s)
                )

    def _is_crowded(self) -> bool:
        return self._outboxes.num_bytes > self._max_waiting_bytes

    def _send(self) -> None:
        """Send all queued batches, unless another thread is sending or Redis does not answer."""
        with self._lock:
            may_send = not (self._is_sending or self._is_stalled)
            self._is_sending = self._is_sending or may_send
        if may_send:
            self._send_all()

    def _send_all(self) -> None:
        """Sends until nothing is left that can be sent, or Redis does not answer. The caller has
        claimed ``_is_sending``."""
        has_left = False
        try:
            while not has_left:
                self._count_unread()
                with self._lock:
                    taken = self._outboxes.take()
                    has_left = not taken
                    if has_left:
                        self._leave(error=None)
                if taken:
                    self._settle(taken, self._execute(taken))
        except (redis.RedisError, OSError) as error:
            with self._lock:
                has_left = True
                self._leave(error)
        finally:
            if not has_left:
                with self._lock:
                    self._leave(RuntimeError("sending events broke"))

    def _count_unread(self) -> None:
        """Raises ``redis.RedisError`` when Redis does not answer."""
        with self._lock:
            crowded = self._outboxes.crowded()
        if not crowded:
            return
        pipeline = self._client.pipeline(transaction=False)
        for gateway_id in crowded:
            pipeline.xrange(events_key(self._neuron, gateway_id), count=1)
        replies: list[Any] = pipeline.execute(raise_on_error=False)
        with self._lock:
            for gateway_id, reply in zip(crowded, replies, strict=True):
                # A key of another type is reported by the next XADD.
                has_entry = bool(reply) and not isinstance(reply, Exception)
                self._outboxes.begins_at(gateway_id, reply[0][0] if has_entry else None)

    def _execute(self, batches: list[Batch]) -> list[object]:
        """Raises ``redis.RedisError`` when Redis does not answer."""
        # Several of one gateway go in or stay out together: one that follows another must not be
        # in when that one is not, should the stream be made just then.
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

    def _settle(self, batches: list[Batch], replies: list[object]) -> None:
        refused: list[Batch] = []
        problem: Exception | None = None
        with self._lock:
            for batch, reply in zip(batches, replies, strict=True):
                if isinstance(reply, Exception):
                    problem = reply
                    refused += self._outboxes.drop(batch.gateway_id)
                elif reply is None:
                    self._outboxes.block(batch.gateway_id)
                    self._ensure_resender()
                else:
                    assert isinstance(reply, bytes)
                    self._outboxes.acknowledge(batch, reply)
                    self._has_sent = True
            self._sent_some.notify_all()
        self._give_up(refused, str(problem))

    def _leave(self, error: Exception | None) -> None:
        """The sender has done what it could. Holds the lock already."""
        self._is_sending = False
        if error is not None:
            self._ensure_resender()
        if error is not None and not self._is_stalled:
            log.error("events do not reach Redis: %s; kept for %.0f s", error, self._keep_s)
        if error is None and self._is_stalled:
            log.warning("events reach Redis again")
        self._is_stalled = error is not None
        if not self._outboxes:
            self._sent_some.notify_all()
        elif self._outboxes.crowded():
            self._ensure_resender()

    def _give_up(self, batches: Iterable[Batch], why: str) -> None:
        lost = {
            event.request_id for batch in batches for event in decode_event_batch(batch.data).events
        }
        if lost:
            log.error("events of %d requests are given up: %s", len(lost), why)
            self._on_lost(lost)

    # The resender.

    def _ensure_resender(self) -> None:
        """Holds the lock already."""
        if self._resender is None:
            self._resender = SupervisedThread(self._resend, name="resender")
            self._resender.start()

    def _resend(self) -> None:
        num_tries = 0
        is_done = False
        while not is_done:
            num_tries = 1 if self._has_sent else num_tries + 1
            self._has_sent = False
            time.sleep(RESEND_BACKOFF.wait_s(num_tries))
            try:
                is_done = self._resend_once()
            except Exception:
                log.exception("sending events again broke")

    def _resend_once(self) -> bool:
        """Whether nothing is left. The thread ends then; the next one that is needed is new."""
        with self._lock:
            overdue = self._outboxes.drop_older_than(time.monotonic() - self._keep_s)
            self._outboxes.unblock()
            is_done = not self._outboxes
            if is_done:
                self._resender = None
                self._is_stalled = False
                self._sent_some.notify_all()
            may_send = not (is_done or self._is_sending)
            self._is_sending = self._is_sending or may_send
        self._give_up(overdue, f"Redis did not take them for {self._keep_s:.0f} s")
        if may_send:
            self._send_all()
        return is_done
