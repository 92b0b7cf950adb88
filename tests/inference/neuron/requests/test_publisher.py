"""Batches of events: large ones are split and mean the same, each has its number, and what happens
when Redis does not take one."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from typing import Any

import msgspec
import redis
from hypothesis import example, given
from hypothesis import strategies as st
from redis.backoff import NoBackoff
from redis.retry import Retry

from inference.neuron.requests.batches import batches_within
from inference.neuron.requests.publisher import MAX_UNREAD_BYTES, EventPublisher
from inference.neuron.requests.request_table import AddressedEvent
from inference.protocol import events as protocol
from inference.protocol.keys import EVENTS_FIRST_ENTRY_ID, events_key
from tests.inference.neuron.conftest import wait_until
from tests.servers.private_redis import MortalRedis

MAX_BYTES = 4096
ID = "a-request"
USAGE = protocol.Usage(prompt_tokens=3, completion_tokens=0)
TOKEN = protocol.RankedToken(token_id=70_000, text="word", logprob=-1.5, rank=3)
LOGPROB = protocol.TextLogprob(
    token="é", token_bytes="é".encode(), logprob=-0.5, top=[("a", b"a", -2.0)] * 20
)

LARGE: list[protocol.Event] = [
    protocol.Embedded(
        request_id=ID, vectors=[bytes([n % 256]) * 1000 for n in range(50)], usage=USAGE
    ),
    protocol.Embedded(request_id=ID, vectors=[b"v" * 20_000, b"w" * 20_000], usage=USAGE),
    protocol.Delta(request_id=ID, text="écho " * 5000, num_tokens=3, logprobs=[LOGPROB] * 200),
    protocol.PromptScored(request_id=ID, prompt_index=1, tokens=[[TOKEN] * 21] * 100),
    protocol.OutputTokens(request_id=ID, index=2, token_ids=list(range(100_000, 110_000))),
    protocol.Accepted(request_id=ID, prompt_tokens=9000, prompt_token_ids=[list(range(9000))]),
    protocol.Tokenized(request_id=ID, token_ids=list(range(9000)), context_tokens=1),
    protocol.ToolCallDelta(request_id=ID, arguments="x" * 30_000),
]


def _whole(events: list[protocol.Event]) -> list[protocol.Event]:
    whole: list[protocol.Event] = []
    data = b""
    for event in events:
        if isinstance(event, protocol.Fragment):
            data += event.data
            if event.is_last:
                whole.append(protocol.decode_event(data))
                data = b""
        else:
            assert not data, "another event between fragments"
            whole.append(event)
    assert not data
    return whole


SPLIT = ("vectors", "text", "logprobs", "num_tokens", "tokens", "token_ids")


def _meaning(events: list[protocol.Event]) -> dict[str, Any]:
    """What a client is shown of them, however they are split."""
    found: dict[str, Any] = {"places": set(), "others": []}
    for event in events:
        fields = msgspec.structs.asdict(event)
        if parts := [name for name in SPLIT if name in fields]:
            found["places"].add((fields.get("prompt_index"), fields.get("index")))
        else:
            found["others"].append(event)
        for name in parts:
            added = [fields[name]] if name == "num_tokens" else [*(fields[name] or ())]
            found.setdefault(name, []).extend(added)
    found["num_tokens"] = sum(found.get("num_tokens", ()))
    return found


small = st.builds(
    protocol.Delta,
    request_id=st.just(ID),
    text=st.text(max_size=2000),
    num_tokens=st.integers(0, 9),
)
finished = st.builds(protocol.ChoiceFinished, request_id=st.just(ID), reason=st.just("stop"))


@given(st.lists(small | finished | st.sampled_from(LARGE), max_size=20))
@example(LARGE[:1])
@example(LARGE)
def test_large_events_are_split_in_order_and_mean_the_same(events: list[protocol.Event]) -> None:
    batches = list(batches_within(MAX_BYTES, events))
    assert all(
        0 < sum(map(len, map(protocol.encode_event, batch))) <= MAX_BYTES for batch in batches
    )
    split = [part for batch in batches for part in batch]
    parts = _whole(split)
    assert _meaning(parts) == _meaning(events)
    untouched = [event for event in events if event not in LARGE]
    assert [part for part in parts if part in untouched] == untouched
    if events:
        assert type(parts[-1]) is type(events[-1]), "the last one ends what the event ends"
    if all(event in (LARGE[0], *LARGE[2:4]) for event in events):
        assert not any(isinstance(part, protocol.Fragment) for part in split), (
            "their kinds can be split"
        )
    shared = [protocol.Delta(request_id=ID, text="x") for _ in range(100)]
    assert list(batches_within(MAX_BYTES, shared)) == [shared]


IMPATIENT_S = 0.2


def _event(gateway_id: str, request_id: str, text: str = "x") -> AddressedEvent:
    return AddressedEvent(gateway_id, protocol.Delta(request_id=request_id, text=text))


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

    def batches(self, gateway_id: str) -> list[protocol.EventBatch]:
        entries = self.client.xrange(events_key("n1", gateway_id), min=f"({EVENTS_FIRST_ENTRY_ID}")
        return [
            protocol.decode_event_batch(fields[protocol.EVENT_BATCH_FIELD]) for _, fields in entries
        ]

    def numbers(self, gateway_id: str) -> list[int]:
        return [batch.sequence_number for batch in self.batches(gateway_id)]

    def read_away(self, gateway_id: str) -> list[protocol.EventBatch]:
        """Every batch so far. The entries of the stream go as its gateway reads them."""
        key = events_key("n1", gateway_id)
        found = [one for one in self.client.xrange(key) if protocol.EVENT_BATCH_FIELD in one[1]]
        sizes = [len(fields[protocol.EVENT_BATCH_FIELD]) for _, fields in found]
        assert sum(sizes) <= MAX_UNREAD_BYTES and max(sizes, default=0) <= protocol.MAX_BATCH_BYTES
        for entry_id, fields in found:
            self.entries.append(fields)
            self.client.xdel(key, entry_id)
        batches = [
            protocol.decode_event_batch(fields[protocol.EVENT_BATCH_FIELD])
            for fields in self.entries
        ]
        assert [batch.sequence_number for batch in batches] == list(range(len(batches)))
        return batches


def away(**limits: Any) -> Published:
    return Published(redis.Redis.from_url("unix:///nowhere/redis.sock"), **limits)


def test_gateways_have_numbered_entries_whatever_others_streams_do(redis_db: redis.Redis) -> None:
    published = Published(redis_db)
    published.make_streams("b")
    for number in range(3):
        published.publish(_event("a", f"r{number}"), _event("b", "s"), _event("b", f"s{number}"))
    published.publish()
    assert published.numbers("b") == [0, 1, 2], "nobody waits for the stream of another"
    first, *_ = published.batches("b")
    assert ([event.request_id for event in first.events], first.epoch) == (["s", "s0"], "e")
    wait_until(lambda: published.publisher.behind() == ["a"])
    published.make_streams("a")
    published.publisher.flush(60)
    assert published.numbers("a") == [0, 1, 2], "they are sent when there is one"
    assert published.publisher.behind() == published.lost == []
    redis_db.set(events_key("n1", "c"), "no stream")
    published.publish(_event("c", "r1"), _event("b", "r2"))
    assert published.lost == [{"r1"}]
    redis_db.delete(events_key("n1", "c"))
    published.make_streams("c")
    published.publish(_event("c", "r3"), _event("b", "r4"))
    assert (published.numbers("c"), published.numbers("b")) == ([1], [0, 1, 2, 3, 4]), "a gap"
    redis_db.delete(events_key("n1", "c"))  # as its gateway does when it leaves
    published.publish(_event("c", "r5"))
    published.publisher.retire("c")
    published.publisher.flush(60)
    assert not redis_db.exists(events_key("n1", "c"))


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
            event: Any = batch.events[0]
            if batch.sequence_number not in seen:
                assert batch.sequence_number == next(due), "a gap"
            assert seen.setdefault(batch.sequence_number, event.text) == event.text
    assert list(seen.values()) == texts
    assert published.lost == []


def test_large_answers_at_once_are_sent_in_bounded_entries(redis_db: redis.Redis) -> None:
    published = Published(redis_db, max_kept_bytes=4_000_000)
    published.make_streams("a", "b")
    vectors, usage = [bytes(16_384)] * 300, protocol.Usage(prompt_tokens=1, completion_tokens=0)
    answers = [
        protocol.Embedded(request_id=f"r{n}", vectors=vectors, usage=usage) for n in range(4)
    ]
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
    events: list[Any] = [event for batch in batches for event in batch.events]
    found: Counter[str] = Counter()
    for event in events:
        found[event.request_id] += len(event.vectors)
    assert found == dict.fromkeys(("r0", "r1", "r2", "r3"), 300)
    assert sum(isinstance(event, protocol.Embedded) for event in events) == 4
