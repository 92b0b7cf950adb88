"""Batches, their numbers, and what happens when Redis does not take one."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from typing import Any

import pytest
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
from tests.inference.neuron.conftest import wait_until
from tests.servers.private_redis import MortalRedis

IMPATIENT_S = 0.2


def _event(gateway_id: str, request_id: str, text: str = "x") -> AddressedEvent:
    return AddressedEvent(gateway_id, Delta(request_id=request_id, text=text))


class Published:
    """A publisher and the streams of its gateways."""

    def __init__(
        self, client: redis.Redis, publishing: redis.Redis | None = None, **limits: Any
    ) -> None:
        self.client = client
        self.lost: list[set[str]] = []
        self.publisher = EventPublisher(
            publishing or client, neuron="n1", epoch="e", on_lost=self.lost.append, **limits
        )
        self.entries: list[dict[bytes, bytes]] = []
        """What a gateway has read away."""

    def make_streams(self, *gateway_ids: str) -> None:
        for gateway_id in gateway_ids:
            self.client.xadd(events_key("n1", gateway_id), {b"": b""}, id=EVENTS_FIRST_ENTRY_ID)

    def publish(self, *events: AddressedEvent) -> None:
        self.publisher.publish(list(events))

    def batches(self, gateway_id: str) -> list[EventBatch]:
        entries = self.client.xrange(events_key("n1", gateway_id), min=f"({EVENTS_FIRST_ENTRY_ID}")
        return [decode_event_batch(fields[EVENT_BATCH_FIELD]) for _, fields in entries]

    def numbers(self, gateway_id: str) -> list[int]:
        return [batch.sequence_number for batch in self.batches(gateway_id)]

    def read_away(self, gateway_id: str) -> list[EventBatch]:
        """Every batch so far. The entries of the stream go as its gateway reads them."""
        key = events_key("n1", gateway_id)
        entries: list[Any] = self.client.xrange(key)
        found = [fields for _, fields in entries if EVENT_BATCH_FIELD in fields]
        assert sum(len(fields[EVENT_BATCH_FIELD]) for fields in found) <= MAX_UNREAD_BYTES
        if entries:
            self.client.xtrim(key, minid=entries[-1][0], approximate=False)
            self.client.xdel(key, entries[-1][0])
        self.entries += found
        batches = [decode_event_batch(fields[EVENT_BATCH_FIELD]) for fields in self.entries]
        assert [batch.sequence_number for batch in batches] == list(range(len(batches)))
        return batches


@pytest.fixture
def published(redis_db: redis.Redis) -> Published:
    return Published(redis_db)


def away(**limits: Any) -> Published:
    return Published(redis.Redis.from_url("unix:///nowhere/redis.sock"), **limits)


def test_one_entry_per_gateway_and_publish(published: Published) -> None:
    published.make_streams("a", "b")
    published.publish(_event("a", "r1"), _event("b", "r2"), _event("a", "r3"))
    published.publish(_event("a", "r1"))
    published.publish()
    first, second = published.batches("a")
    assert [event.request_id for event in first.events] == ["r1", "r3"]
    assert (first.sequence_number, second.sequence_number) == (0, 1)
    assert published.numbers("b") == [0]
    assert first.epoch == "e"
    assert published.lost == []


def test_what_no_stream_took_is_sent_when_there_is_one_and_others_do_not_wait(
    published: Published,
) -> None:
    published.make_streams("b")
    for number in range(3):
        published.publish(_event("a", f"r{number}"), _event("b", f"s{number}"))
    assert published.numbers("b") == [0, 1, 2]
    wait_until(lambda: published.publisher.behind() == ["a"])
    published.make_streams("a")
    published.publisher.flush(60)
    assert published.numbers("a") == [0, 1, 2]
    assert published.publisher.behind() == published.lost == []


def test_a_refused_batch_is_lost_for_its_gateway_only_and_leaves_a_gap(
    published: Published,
) -> None:
    published.client.set(events_key("n1", "a"), "no stream")
    published.make_streams("b")
    published.publish(_event("a", "r1"), _event("b", "r2"))
    assert published.lost == [{"r1"}]
    published.client.delete(events_key("n1", "a"))
    published.make_streams("a")
    published.publish(_event("a", "r3"), _event("b", "r4"))
    assert published.numbers("a") == [1]
    assert published.numbers("b") == [0, 1]
    published.client.delete(events_key("n1", "a"))  # as its gateway does when it leaves
    published.publish(_event("a", "r5"))
    published.publisher.retire("a")
    published.publisher.flush(60)
    assert not published.client.exists(events_key("n1", "a"))


def test_without_redis_requests_are_lost_after_a_while_and_who_has_most_unsent_is_first() -> None:
    published, published_s = away(keep_s=0.5), time.monotonic()
    published.publish(_event("a", "r1"), _event("b", "r2"))
    wait_until(lambda: set[str]().union(*published.lost) == {"r1", "r2"})
    assert time.monotonic() - published_s >= 0.5
    published = away(max_kept_bytes=10_000)
    published.publish(_event("a", "small"))
    published.publish(_event("b", "large", "x" * 4000))
    assert published.lost == []
    published.publish(_event("c", "larger", "x" * 7000))
    assert published.lost == [{"larger"}]
    published.publish(_event("b", "more", "x" * 7000))
    assert published.lost == [{"larger"}, {"large", "more"}], "given up whole"


def test_a_stall_loses_nothing_and_a_reader_can_detect_repeats(mortal: MortalRedis) -> None:
    impatient = redis.Redis.from_url(
        mortal.url,
        socket_timeout=IMPATIENT_S,
        socket_connect_timeout=IMPATIENT_S,
        retry=Retry(NoBackoff(), 0),
    )
    texts = [str(number) for number in range(200)]
    with redis.Redis.from_url(mortal.url) as client:
        published = Published(client, impatient)
        published.make_streams("a")
        for text in texts[:50]:
            published.publish(_event("a", "r", text))
        mortal.suspend()
        started_s = time.monotonic()
        for text in texts[50:150]:
            published.publish(_event("a", "r", text))
        assert time.monotonic() - started_s < 50 * IMPATIENT_S, "each waits for a timeout"
        time.sleep(4 * IMPATIENT_S)
        assert published.publisher.behind() == ["a"]
        mortal.resume()
        for text in texts[150:]:
            published.publish(_event("a", "r", text))
        published.publisher.flush(60)
        seen: dict[int, str] = {}
        due = itertools.count()
        for batch in published.batches("a"):
            (event,) = batch.events
            assert isinstance(event, Delta)
            if batch.sequence_number not in seen:
                assert batch.sequence_number == next(due), "a gap"
            assert seen.setdefault(batch.sequence_number, event.text) == event.text
    assert list(seen.values()) == texts
    assert published.lost == []


def test_large_answers_at_once_are_sent_in_bounded_entries(redis_db: redis.Redis) -> None:
    """Together they are several times the bound on kept bytes: the publishing thread waits, and
    other gateways do not."""
    published = Published(redis_db, max_kept_bytes=4_000_000)
    published.make_streams("a", "b")
    vectors, usage = [bytes(16_384)] * 300, Usage(prompt_tokens=1, completion_tokens=0)
    answers = [Embedded(request_id=f"r{n}", vectors=vectors, usage=usage) for n in range(4)]
    addressed = [AddressedEvent("a", one) for one in answers]
    threads = [threading.Thread(target=published.publish, args=(one,)) for one in addressed]
    for thread in threads:
        thread.start()
    wait_until(lambda: published.publisher.behind() == ["a"])
    published.publish(_event("b", "s"))
    assert published.numbers("b") == [0]
    while any(thread.is_alive() for thread in threads) or published.publisher.behind():
        published.read_away("a")
    published.publisher.flush(60)
    batches = published.read_away("a")
    assert published.lost == []
    sizes = [len(fields[EVENT_BATCH_FIELD]) for fields in published.entries]
    assert max(sizes) <= MAX_BATCH_BYTES
    found: Counter[str] = Counter()
    events = [event for batch in batches for event in batch.events]
    for event in events:
        assert isinstance(event, EmbeddedPart | Embedded)
        found[event.request_id] += len(event.vectors)
    assert found == dict.fromkeys(("r0", "r1", "r2", "r3"), 300)
    assert sum(isinstance(event, Embedded) for event in events) == 4
