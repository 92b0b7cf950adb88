"""Batches, their numbers, and what happens when Redis does not take one."""

from __future__ import annotations

import redis

from inference.neuron.event_publisher import EventPublisher
from inference.neuron.live_request import AddressedEvent
from inference.protocol.events import (
    EVENT_BATCH_FIELD,
    Delta,
    EventBatch,
    decode_event_batch,
)
from inference.protocol.keys import gateway_events_key


def _event(gateway_id: str, request_id: str) -> AddressedEvent:
    return AddressedEvent(gateway_id, Delta(request_id=request_id, text="x"))


def _batches(client: redis.Redis, gateway_id: str) -> list[EventBatch]:
    entries = client.xrange(gateway_events_key(gateway_id))
    return [decode_event_batch(fields[EVENT_BATCH_FIELD]) for _, fields in entries]


def _publisher(client: redis.Redis, lost: list[set[str]]) -> EventPublisher:
    return EventPublisher(client, neuron="n1", epoch="e", on_lost=lost.append)


def test_one_entry_per_gateway_and_publish(redis_db: redis.Redis) -> None:
    lost: list[set[str]] = []
    publisher = _publisher(redis_db, lost)
    publisher.publish([_event("a", "r1"), _event("b", "r2"), _event("a", "r3")])
    publisher.publish([_event("a", "r1")])
    publisher.publish([])
    first, second = _batches(redis_db, "a")
    assert [event.request_id for event in first.events] == ["r1", "r3"]
    assert (first.sequence_number, second.sequence_number) == (0, 1)
    assert [batch.sequence_number for batch in _batches(redis_db, "b")] == [0]
    assert (first.neuron, first.epoch) == ("n1", "e")
    assert lost == []


def test_a_refused_batch_is_lost_for_its_gateway_only_and_leaves_a_gap(
    redis_db: redis.Redis,
) -> None:
    lost: list[set[str]] = []
    publisher = _publisher(redis_db, lost)
    redis_db.set(gateway_events_key("a"), "no stream")
    publisher.publish([_event("a", "r1"), _event("b", "r2")])
    assert lost == [{"r1"}]
    redis_db.delete(gateway_events_key("a"))
    publisher.publish([_event("a", "r3"), _event("b", "r4")])
    assert [batch.sequence_number for batch in _batches(redis_db, "a")] == [1]
    assert [batch.sequence_number for batch in _batches(redis_db, "b")] == [0, 1]


def test_without_redis_every_request_is_lost() -> None:
    lost: list[set[str]] = []
    away = redis.Redis.from_url("unix:///nowhere/redis.sock")
    _publisher(away, lost).publish([_event("a", "r1"), _event("b", "r2")])
    assert lost == [{"r1", "r2"}]
