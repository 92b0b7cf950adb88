"""Batches, their numbers, and what happens when Redis does not take one."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from inference.neuron.requests.publisher import MAX_UNREAD_BYTES, EventPublisher
from inference.neuron.requests.request_table import AddressedEvent
from inference.protocol.events import (
    EVENT_BATCH_FIELD,
    MAX_BATCH_BYTES,
    Delta,
    Embedded,
    EmbeddedPart,
    EventBatch,
    Usage,
    decode_event_batch,
)
from inference.protocol.keys import EVENTS_FIRST_ENTRY_ID, events_key
from tests.servers.private_redis import MortalRedis

WaitUntil = Callable[[Callable[[], object]], None]
IMPATIENT_S = 0.2


def _event(gateway_id: str, request_id: str, text: str = "x") -> AddressedEvent:
    return AddressedEvent(gateway_id, Delta(request_id=request_id, text=text))


def _make_streams(client: redis.Redis, *gateway_ids: str) -> None:
    for gateway_id in gateway_ids:
        client.xadd(events_key("n1", gateway_id), {b"": b""}, id=EVENTS_FIRST_ENTRY_ID)


def _batches(client: redis.Redis, gateway_id: str) -> list[EventBatch]:
    entries = client.xrange(events_key("n1", gateway_id), min=f"({EVENTS_FIRST_ENTRY_ID}")
    return [decode_event_batch(fields[EVENT_BATCH_FIELD]) for _, fields in entries]


def _numbers(client: redis.Redis, gateway_id: str) -> list[int]:
    return [batch.sequence_number for batch in _batches(client, gateway_id)]


def _publisher(client: redis.Redis, lost: list[set[str]], **limits: Any) -> EventPublisher:
    return EventPublisher(client, neuron="n1", epoch="e", on_lost=lost.append, **limits)


def _impatient(url: str) -> redis.Redis:
    return redis.Redis.from_url(
        url,
        socket_timeout=IMPATIENT_S,
        socket_connect_timeout=IMPATIENT_S,
        retry=Retry(NoBackoff(), 0),
    )


def test_one_entry_per_gateway_and_publish(redis_db: redis.Redis) -> None:
    lost: list[set[str]] = []
    publisher = _publisher(redis_db, lost)
    _make_streams(redis_db, "a", "b")
    publisher.publish([_event("a", "r1"), _event("b", "r2"), _event("a", "r3")])
    publisher.publish([_event("a", "r1")])
    publisher.publish([])
    first, second = _batches(redis_db, "a")
    assert [event.request_id for event in first.events] == ["r1", "r3"]
    assert (first.sequence_number, second.sequence_number) == (0, 1)
    assert _numbers(redis_db, "b") == [0]
    assert first.epoch == "e"
    assert lost == []


def test_a_stream_that_its_gateway_has_deleted_stays_away(redis_db: redis.Redis) -> None:
    publisher = _publisher(redis_db, [])
    _make_streams(redis_db, "a")
    publisher.publish([_event("a", "r1")])
    redis_db.delete(events_key("n1", "a"))
    publisher.publish([_event("a", "r1")])
    publisher.retire("a")
    publisher.flush(60)
    assert not redis_db.exists(events_key("n1", "a"))


def test_what_no_stream_took_is_sent_when_there_is_one_and_others_do_not_wait(
    redis_db: redis.Redis, wait_until: WaitUntil
) -> None:
    lost: list[set[str]] = []
    publisher = _publisher(redis_db, lost)
    _make_streams(redis_db, "b")
    for number in range(3):
        publisher.publish([_event("a", f"r{number}"), _event("b", f"s{number}")])
    assert _numbers(redis_db, "b") == [0, 1, 2]
    wait_until(lambda: publisher.behind() == ["a"])
    _make_streams(redis_db, "a")
    publisher.flush(60)
    assert _numbers(redis_db, "a") == [0, 1, 2]
    assert publisher.behind() == []
    assert lost == []


def test_a_refused_batch_is_lost_for_its_gateway_only_and_leaves_a_gap(
    redis_db: redis.Redis,
) -> None:
    lost: list[set[str]] = []
    publisher = _publisher(redis_db, lost)
    redis_db.set(events_key("n1", "a"), "no stream")
    _make_streams(redis_db, "b")
    publisher.publish([_event("a", "r1"), _event("b", "r2")])
    assert lost == [{"r1"}]
    redis_db.delete(events_key("n1", "a"))
    _make_streams(redis_db, "a")
    publisher.publish([_event("a", "r3"), _event("b", "r4")])
    assert _numbers(redis_db, "a") == [1]
    assert _numbers(redis_db, "b") == [0, 1]


def test_without_redis_every_request_is_lost_after_a_while(wait_until: WaitUntil) -> None:
    lost: list[set[str]] = []
    away = redis.Redis.from_url("unix:///nowhere/redis.sock")
    publisher = _publisher(away, lost, keep_s=0.5)
    published_s = time.monotonic()
    publisher.publish([_event("a", "r1"), _event("b", "r2")])
    wait_until(lambda: set[str]().union(*lost) == {"r1", "r2"})
    assert time.monotonic() - published_s >= 0.5


def test_no_more_is_kept_than_its_bytes(wait_until: WaitUntil) -> None:
    lost: list[set[str]] = []
    away = redis.Redis.from_url("unix:///nowhere/redis.sock")
    publisher = _publisher(away, lost, max_kept_bytes=10_000)
    publisher.publish([_event("a", "little")])
    publisher.publish([_event("b", "much", "x" * 6000)])
    assert lost == []
    publisher.publish([_event("b", "more", "x" * 6000)])
    assert lost == [{"much", "more"}]


def test_a_stall_loses_nothing_and_a_reader_can_detect_repeats(mortal: MortalRedis) -> None:
    lost: list[set[str]] = []
    publisher = _publisher(_impatient(mortal.url), lost)
    texts = [str(number) for number in range(200)]
    with redis.Redis.from_url(mortal.url) as client:
        _make_streams(client, "a")
        for text in texts[:50]:
            publisher.publish([_event("a", "r", text)])
        mortal.suspend()
        started_s = time.monotonic()
        publisher.publish([_event("a", "r", texts[50])])
        for text in texts[51:150]:
            publisher.publish([_event("a", "r", text)])
        assert time.monotonic() - started_s < 50 * IMPATIENT_S, "each waits for a timeout"
        time.sleep(4 * IMPATIENT_S)
        assert publisher.behind() == ["a"]
        mortal.resume()
        for text in texts[150:]:
            publisher.publish([_event("a", "r", text)])
        publisher.flush(60)
        seen: dict[int, str] = {}
        due = itertools.count()
        for batch in _batches(client, "a"):
            (event,) = batch.events
            assert isinstance(event, Delta)
            if batch.sequence_number not in seen:
                assert batch.sequence_number == next(due), "a gap"
            assert seen.setdefault(batch.sequence_number, event.text) == event.text
    assert list(seen.values()) == texts
    assert lost == []


def test_threads_publish_together_in_number_order(redis_db: redis.Redis) -> None:
    publisher = _publisher(redis_db, [])
    _make_streams(redis_db, "a", "b")

    def publish(name: str) -> None:
        for number in range(50):
            publisher.publish([_event("a", name, str(number)), _event("b", name, str(number))])

    threads = [threading.Thread(target=publish, args=(f"r{index}",)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    publisher.flush(60)
    for gateway_id in ("a", "b"):
        assert _numbers(redis_db, gateway_id) == list(range(200))
        events: list[Any] = [e for batch in _batches(redis_db, gateway_id) for e in batch.events]
        for index in range(4):
            of_one = [event.text for event in events if event.request_id == f"r{index}"]
            assert of_one == [str(number) for number in range(50)]


def _embedded(gateway_id: str, request_id: str, num_vectors: int) -> AddressedEvent:
    vectors = [bytes(16_384) for _ in range(num_vectors)]
    usage = Usage(prompt_tokens=1, completion_tokens=0)
    return AddressedEvent(gateway_id, Embedded(request_id=request_id, vectors=vectors, usage=usage))


def _read_away(client: redis.Redis, gateway_id: str) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """The entries of the stream, which go as its gateway reads them."""
    key = events_key("n1", gateway_id)
    entries: list[Any] = client.xrange(key)
    assert sum(len(fields.get(EVENT_BATCH_FIELD, b"")) for _, fields in entries) <= MAX_UNREAD_BYTES
    if entries:
        client.xtrim(key, minid=entries[-1][0], approximate=False)
        client.xdel(key, entries[-1][0])
    return [entry for entry in entries if EVENT_BATCH_FIELD in entry[1]]


def test_large_answers_at_once_are_sent_in_bounded_entries(redis_db: redis.Redis) -> None:
    """Together they are several times the bound on kept bytes: the publishing thread waits."""
    lost: list[set[str]] = []
    publisher = _publisher(redis_db, lost, max_kept_bytes=4_000_000)
    _make_streams(redis_db, "a")
    threads = [
        threading.Thread(target=publisher.publish, args=([_embedded("a", f"r{n}", 300)],))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    entries: list[tuple[bytes, dict[bytes, bytes]]] = []
    while any(thread.is_alive() for thread in threads) or publisher.behind():
        entries += _read_away(redis_db, "a")
    publisher.flush(60)
    entries += _read_away(redis_db, "a")
    assert lost == []
    batches = [decode_event_batch(fields[EVENT_BATCH_FIELD]) for _, fields in entries]
    assert [batch.sequence_number for batch in batches] == list(range(len(batches)))
    assert max(len(fields[EVENT_BATCH_FIELD]) for _, fields in entries) <= MAX_BATCH_BYTES
    vectors: Counter[str] = Counter()
    for event in (event for batch in batches for event in batch.events):
        assert isinstance(event, EmbeddedPart | Embedded)
        vectors[event.request_id] += len(event.vectors)
    assert vectors == dict.fromkeys(("r0", "r1", "r2", "r3"), 300)
    ends = [event for batch in batches for event in batch.events if isinstance(event, Embedded)]
    assert len(ends) == 4


def test_a_gateway_that_reads_nothing_gets_no_more_and_holds_up_nobody(
    redis_db: redis.Redis, wait_until: WaitUntil
) -> None:
    lost: list[set[str]] = []
    publisher = _publisher(redis_db, lost)
    _make_streams(redis_db, "a", "b")
    publisher.publish([_embedded("a", f"r{number}", 100) for number in range(10)])
    publisher.publish([_event("b", "s")])
    assert _numbers(redis_db, "b") == [0]
    wait_until(lambda: publisher.behind() == ["a"])
    entries = _read_away(redis_db, "a")
    while publisher.behind():
        entries += _read_away(redis_db, "a")
    publisher.flush(60)
    entries += _read_away(redis_db, "a")
    batches = [decode_event_batch(fields[EVENT_BATCH_FIELD]) for _, fields in entries]
    assert [batch.sequence_number for batch in batches] == list(range(len(batches)))
    assert {event.request_id for batch in batches for event in batch.events} == {
        f"r{number}" for number in range(10)
    }
    assert lost == []


def test_whoever_has_most_unsent_is_given_up_first_and_whole(wait_until: WaitUntil) -> None:
    lost: list[set[str]] = []
    away = redis.Redis.from_url("unix:///nowhere/redis.sock")
    publisher = _publisher(away, lost, max_kept_bytes=10_000, keep_s=3.0)
    publisher.publish([_event("a", "small")])
    publisher.publish([_event("b", "large", "x" * 4000)])
    publisher.publish([_event("c", "larger", "x" * 7000)])
    assert lost == [{"larger"}]
    publisher.publish([_event("b", "more", "x" * 7000)])
    assert lost == [{"larger"}, {"large", "more"}]
    wait_until(lambda: lost[2:] == [{"small"}])
