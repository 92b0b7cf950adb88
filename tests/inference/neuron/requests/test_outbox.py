"""Events are kept for gateways until Redis has them; some are dropped."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from inference.neuron.requests import outbox
from inference.neuron.requests.outbox import Batch, Outboxes, batches_within
from inference.protocol.events import (
    Accepted,
    ChoiceFinished,
    Delta,
    Embedded,
    EmbeddedPart,
    Event,
    Fragment,
    OutputTokens,
    PromptScored,
    RankedToken,
    TextLogprob,
    Tokenized,
    ToolCallDelta,
    Usage,
    decode_event,
    encode_event,
)
from tests.cases import each_case

MAX_BYTES = 4096
ID = "a-request"
USAGE = Usage(prompt_tokens=3, completion_tokens=0)
TOKEN = RankedToken(token_id=70_000, text="word", logprob=-1.5, rank=3)
LOGPROB = TextLogprob(
    token="é", token_bytes="é".encode(), logprob=-0.5, top=[("a", b"a", -2.0)] * 20
)

LARGE: list[Event] = [
    Embedded(request_id=ID, vectors=[bytes([n % 256]) * 1000 for n in range(50)], usage=USAGE),
    Embedded(request_id=ID, vectors=[b"v" * 20_000, b"w" * 20_000], usage=USAGE),
    Delta(request_id=ID, text="écho " * 5000, num_tokens=3, logprobs=[LOGPROB] * 200),
    PromptScored(request_id=ID, prompt_index=1, tokens=[[TOKEN] * 21] * 100),
    OutputTokens(request_id=ID, index=2, token_ids=list(range(100_000, 110_000))),
    Accepted(request_id=ID, prompt_tokens=9000, prompt_token_ids=[list(range(9000))]),
    Tokenized(request_id=ID, token_ids=list(range(9000)), context_tokens=1),
    ToolCallDelta(request_id=ID, arguments="x" * 30_000),
]


def _whole(events: list[Event]) -> list[Event]:
    """Returns the events with fragments put together."""
    whole: list[Event] = []
    data = b""
    for event in events:
        if isinstance(event, Fragment):
            data += event.data
            if event.is_last:
                whole.append(decode_event(data))
                data = b""
        else:
            assert not data, "another event between fragments"
            whole.append(event)
    assert not data
    return whole


def _meaning(events: list[Event]) -> dict[str, Any]:
    """What a client is shown of them, however they are split."""
    found: dict[str, Any] = {"vectors": [], "text": "", "logprobs": [], "tokens": [], "ids": []}
    found |= {"num_tokens": 0, "others": []}
    for event in events:
        match event:
            case EmbeddedPart() | Embedded():
                found["vectors"] += event.vectors
            case Delta():
                found["text"] += event.text
                found["logprobs"] += event.logprobs or []
                found["num_tokens"] += event.num_tokens
            case PromptScored():
                found["tokens"] += [(event.prompt_index, token) for token in event.tokens]
            case OutputTokens():
                found["ids"] += [(event.index, token_id) for token_id in event.token_ids]
            case _:
                found["others"].append(event)
    return found


@each_case("event", LARGE, ids=lambda event: type(event).__name__)
def test_a_large_event_is_split_and_means_the_same(event: Event) -> None:
    batches = list(batches_within(MAX_BYTES, [event]))
    assert len(batches) > 5
    assert all(sum(map(len, map(encode_event, batch))) <= MAX_BYTES for batch in batches)
    parts = _whole([part for batch in batches for part in batch])
    assert _meaning(parts) == _meaning([event])
    assert type(parts[-1]) is type(event), "the last one ends what the event ends"


def test_only_what_no_kind_can_be_split_into_comes_in_fragments() -> None:
    kinds = {
        type(part)
        for event in (LARGE[0], *LARGE[2:5])
        for batch in batches_within(MAX_BYTES, [event])
        for part in batch
    }
    assert Fragment not in kinds


small = st.builds(
    Delta, request_id=st.just(ID), text=st.text(max_size=2000), num_tokens=st.integers(0, 9)
)
finished = st.builds(ChoiceFinished, request_id=st.just(ID), reason=st.just("stop"))


@given(st.lists(small | finished | st.sampled_from(LARGE), max_size=20))
def test_any_events_keep_their_order_and_fit(events: list[Event]) -> None:
    batches = list(batches_within(MAX_BYTES, events))
    assert all(0 < sum(map(len, map(encode_event, batch))) <= MAX_BYTES for batch in batches)
    parts = _whole([part for batch in batches for part in batch])
    assert _meaning(parts) == _meaning(events)
    untouched = [event for event in events if event not in LARGE]
    assert [part for part in parts if part in untouched] == untouched


def test_small_events_share_their_entries() -> None:
    events: list[Event] = [Delta(request_id=ID, text="x") for _ in range(100)]
    assert list(batches_within(MAX_BYTES, events)) == [events]


def _batch(gateway_id: str, number: int = 0, *, num_bytes: int = 10, added_s: float = 0) -> Batch:
    return Batch(gateway_id, str(number).encode().ljust(num_bytes), added_s)


def _filled(*batches: Batch, max_bytes: int = 1000) -> Outboxes:
    outboxes = Outboxes(max_bytes=max_bytes)
    for batch in batches:
        outboxes.add(batch)
    return outboxes


def test_what_is_taken_stays_until_it_is_acknowledged() -> None:
    first, second = _batch("a", 1), _batch("a", 2)
    outboxes = _filled(first, second)
    assert outboxes.take() == [first, second]
    outboxes.acknowledge(first, b"1-1")
    assert outboxes.take() == [second]
    outboxes.acknowledge(second, b"1-2")
    assert not outboxes
    assert outboxes.take() == []


def test_a_blocked_gateway_holds_up_nobody_else() -> None:
    ours, theirs = _batch("a"), _batch("b")
    outboxes = _filled(ours, theirs)
    outboxes.block("a")
    outboxes.block("unknown")
    assert outboxes.take() == [theirs]
    outboxes.unblock()
    assert outboxes.take() == [ours, theirs]


def test_no_more_is_taken_at_a_time_than_redis_answers_quickly() -> None:
    many = [_batch("a", number) for number in range(outbox.MAX_TAKEN + 5)]
    assert _filled(*many).take() == many[: outbox.MAX_TAKEN]
    large = [_batch("a", n, num_bytes=outbox.MAX_TAKEN_BYTES - 1) for n in range(2)]
    assert _filled(*large).take() == large[:1]
    huge = _batch("a", num_bytes=outbox.MAX_TAKEN_BYTES + 1)
    assert _filled(huge).take() == [huge]


def test_whoever_has_most_is_given_up_first_and_whole() -> None:
    small, large, larger = _batch("a"), _batch("b", 1, num_bytes=40), _batch("b", 2, num_bytes=60)
    outboxes = _filled(small, large, max_bytes=80)
    assert outboxes.drop_excess() == []
    outboxes.add(larger)
    assert outboxes.drop_excess() == [large, larger]
    assert outboxes.take() == [small]


def test_an_old_batch_takes_those_after_it_along() -> None:
    old, new, other = _batch("a", 1), _batch("a", 2, added_s=9), _batch("b", added_s=9)
    outboxes = _filled(old, new, other)
    assert outboxes.behind(5) == ["a"]
    assert outboxes.drop_older_than(5) == [old, new]
    assert outboxes.take() == [other]


def test_an_answer_for_what_was_given_up_meanwhile_is_ignored() -> None:
    given_up, later = _batch("a", 1), _batch("a", 2)
    outboxes = _filled(given_up)
    outboxes.drop("a")
    outboxes.acknowledge(given_up, b"1-1")
    outboxes.add(later)
    outboxes.acknowledge(given_up, b"1-1")
    assert outboxes.take() == [later]


def test_what_a_gateway_has_not_read_leaves_no_room_for_more() -> None:
    half = outbox.MAX_UNREAD_BYTES // 2
    first, second, third, other = (
        *(_batch("a", number, num_bytes=half) for number in range(3)),
        _batch("b"),
    )
    outboxes = _filled(first, second, third, other, max_bytes=10 * half)
    for batch, entry_id in ((first, b"9-1"), (second, b"10-0")):
        assert outboxes.take()[0] is batch
        outboxes.acknowledge(batch, entry_id)
    assert outboxes.take() == [other], "the gateway has read nothing"
    assert outboxes.crowded() == ["a"]
    outboxes.begins_at("a", b"9-1")
    assert outboxes.take() == [other], "the first of them may be unread"
    outboxes.begins_at("a", b"10-0")
    assert outboxes.take() == [third] and outboxes.crowded() == []
    outboxes.acknowledge(third, b"11-0")
    outboxes.add(fourth := _batch("a", 4, num_bytes=half))
    assert outboxes.take() == [other]
    outboxes.acknowledge(other, b"1-0")
    assert outboxes.take() == []
    outboxes.begins_at("a", None)
    assert outboxes.take() == [fourth]


def test_an_entry_of_any_size_is_sent_where_nothing_is_unread() -> None:
    huge = _batch("a", num_bytes=2 * outbox.MAX_UNREAD_BYTES)
    outboxes = _filled(huge, after := _batch("a"), max_bytes=1 << 30)
    assert outboxes.take() == [huge]
    outboxes.acknowledge(huge, b"1-0")
    assert outboxes.take() == []
    outboxes.forget("a")
    outboxes.add(after)
    assert outboxes.take() == [after], "another gateway of that name has a stream of its own"


def test_many_small_entries_are_counted_in_few_marks() -> None:
    entries = outbox.UnreadEntries()
    for number in range(10_000):
        entries.add(b"1-%d" % number, 100)
    assert entries.num_bytes == 1_000_000
    entries.begins_at(b"1-9999")
    assert 100 <= entries.num_bytes <= outbox.MARK_BYTES
    entries.begins_at(b"2-0")
    assert entries.num_bytes == 0
