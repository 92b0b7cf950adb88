"""Events up to the gateways: one stream entry per gateway and engine step, one round trip for all.

Owns the sequence numbers. A batch that Redis did not take leaves a gap in them, so its reader
knows; the requests in it are handed to ``on_lost``, because their gateways have failed them.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable

import redis

from inference.neuron.live_request import AddressedEvent
from inference.protocol.events import (
    EVENT_BATCH_FIELD,
    Event,
    EventBatch,
    encode_event_batch,
)
from inference.protocol.keys import EVENT_STREAM_MAX_ENTRIES, gateway_events_key

log = logging.getLogger(__name__)

DEAD_STREAM_EXPIRY_S = 60
"""How long the stream of a gateway that stopped answering is kept."""


class EventPublisher:
    """``publish`` may be called by any thread; batches of one gateway leave in number order."""

    def __init__(
        self,
        client: redis.Redis,
        *,
        neuron: str,
        epoch: str,
        on_lost: Callable[[set[str]], None],
    ) -> None:
        self._client = client
        self._neuron = neuron
        self._epoch = epoch
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._next_number: defaultdict[str, int] = defaultdict(int)
        self._is_reaching = True

    def publish(self, events: list[AddressedEvent]) -> None:
        if not events:
            return
        by_gateway: defaultdict[str, list[Event]] = defaultdict(list)
        for gateway_id, event in events:
            by_gateway[gateway_id].append(event)
        lost = self._send(by_gateway)
        if lost:
            self._on_lost(lost)

    def retire(self, gateway_id: str) -> None:
        """A gateway is dead: nobody reads its stream any more. Raises ``redis.RedisError``."""
        self._client.expire(gateway_events_key(gateway_id), DEAD_STREAM_EXPIRY_S)

    def _send(self, by_gateway: dict[str, list[Event]]) -> set[str]:
        """Request ids whose events did not arrive."""
        with self._lock:
            pipeline = self._client.pipeline(transaction=False)
            for gateway_id, events in by_gateway.items():
                pipeline.xadd(
                    gateway_events_key(gateway_id),
                    {EVENT_BATCH_FIELD: self._encode(gateway_id, events)},
                    maxlen=EVENT_STREAM_MAX_ENTRIES,
                    approximate=True,
                )
            try:
                replies = pipeline.execute(raise_on_error=False)
            except redis.RedisError as error:
                replies = [error] * len(by_gateway)
        failed = {
            gateway_id: reply
            for gateway_id, reply in zip(by_gateway, replies, strict=True)
            if isinstance(reply, Exception)
        }
        self._tell(next(iter(failed.values()), None))
        return {event.request_id for gateway_id in failed for event in by_gateway[gateway_id]}

    def _encode(self, gateway_id: str, events: list[Event]) -> bytes:
        number = self._next_number[gateway_id]
        self._next_number[gateway_id] = number + 1
        return encode_event_batch(
            EventBatch(
                neuron=self._neuron, epoch=self._epoch, sequence_number=number, events=events
            )
        )

    def _tell(self, error: Exception | None) -> None:
        """Once per outage."""
        if error is not None and self._is_reaching:
            log.error("events do not reach Redis: %s; their requests are cancelled", error)
        self._is_reaching = error is None
