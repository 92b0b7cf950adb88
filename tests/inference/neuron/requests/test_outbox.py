"""Events are kept for gateways until Redis has them; some are dropped."""

from __future__ import annotations

from inference.neuron.requests import outbox
from inference.neuron.requests.outbox import Batch, Outboxes


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
