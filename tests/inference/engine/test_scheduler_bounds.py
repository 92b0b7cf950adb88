"""The scheduler's bounds, each at the last number that is allowed and the first that is not; and
steps that are launched before the last one is read."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from inference.engine.errors import IntegrityError
from inference.engine.scheduler import SCORED_TOKENS_PER_STEP
from inference.engine.sequence import SequenceState
from inference.engine.step import PrefillChunk
from inference.engine.waiting_queue import SchedulerLimits
from inference.protocol.engine import Grammar
from tests.cases import each_case
from tests.inference.engine.test_scheduler import (
    COMPILED,
    PACE,
    FixedPace,
    chunks,
    scheduler_of,
    sequence_of,
    step,
)


def test_the_prefix_of_a_head_that_lacks_blocks_is_not_looked_up_each_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = scheduler_of([sequence_of("a", 5, 60)], num_blocks=24)
    step(scheduler)
    looked_up = Mock(side_effect=scheduler.kv_cache.known_prefix)
    monkeypatch.setattr(scheduler.kv_cache, "known_prefix", looked_up)
    long = sequence_of("b", 90, 2)
    scheduler.add(long)
    for _ in range(50):
        schedule = scheduler.schedule(PACE)
        assert scheduler.schedule_ahead(schedule, PACE) is not None
        scheduler.commit(schedule, [7])
    assert long in scheduler.waiting
    assert 0 < looked_up.call_count < 15, "at most once for each block that has become known"
    scheduler.end(scheduler.running[0])
    step(scheduler)
    assert long in scheduler.running


@each_case(
    ("tokens", "slots", "max_running", "wanted"),
    [
        (1, 9, 9, [("a", 0, 1, False)]),
        (7, 9, 9, [("a", 0, 4, False)]),
        (8, 9, 9, [("a", 0, 8, True)]),
        (9, 9, 9, [("a", 0, 8, True), ("b", 0, 1, False)]),
        (17, 9, 9, [("a", 0, 8, True), ("b", 0, 8, True), ("c", 0, 1, False)]),
        # As many run as there are slots.
        *((99, *slots, [("a", 0, 8, True)]) for slots in ((1, 9), (9, 1))),
        *((99, *slots, [("a", 0, 8, True), ("b", 0, 8, True)]) for slots in ((2, 9), (9, 2))),
        *((99, *slots, [(name, 0, 8, True) for name in "abc"]) for slots in ((3, 3), (9, 9))),
    ],
)
def test_a_step_holds_its_prompt_tokens_and_no_more(
    tokens: int, slots: int, max_running: int, wanted: list[tuple[str, int, int, bool]]
) -> None:
    scheduler = scheduler_of((sequence_of(name, 8) for name in "abc"), max_running=max_running)
    schedule = step(scheduler, FixedPace(tokens=tokens, running_limit=slots))
    assert chunks(schedule) == wanted
    assert schedule.num_prefill_tokens == sum(end - start for _, start, end, _ in wanted)
    assert [s.sequence_id for s in scheduler.running] == [name for name, *_ in wanted]
    assert len(scheduler.waiting) == 3 - len(wanted)
    assert [s.sequence_id for s in schedule.sampled] == [name for name, *_, last in wanted if last]


def test_the_queue_is_as_deep_as_it_may_be() -> None:
    """Two running slots and four places in the queue; three of one account."""
    assert SchedulerLimits(max_queue_depth=5).max_queue_depth_per_account == 3
    quarter = SchedulerLimits(max_queue_depth=100, max_queue_share_percent=25)
    assert quarter.max_queue_depth_per_account == 25
    scheduler, late = scheduler_of(max_running=2), []
    for index in range(1, 7):
        assert not scheduler.is_full
        assert scheduler.is_full_for("a") == (index > 4)
        late.append(sequence_of(f"q{index}", 2, deadline_s=5.0))
        scheduler.add(late[-1])
    assert scheduler.is_full
    assert scheduler.overdue(4.9) == []
    assert scheduler.overdue(5.0) == late[2:], "two have a slot promised"
    step(scheduler)
    assert scheduler.is_full and scheduler.is_full_for("a")
    assert scheduler.overdue(5.0) == late[2:]
    scheduler.end(scheduler.running[0])
    assert not scheduler.is_full
    scheduler.end(*scheduler.running, *scheduler.waiting)
    assert not scheduler.running and not scheduler.waiting
    assert all(s.state is SequenceState.ENDED and not s.block_ids for s in late)
    assert scheduler.kv_cache.allocator.num_used == 0
    # Slots are no promise while blocks are short.
    large, waiting = sequence_of("a", 28), sequence_of("b", 8)
    scheduler = scheduler_of([large, waiting], num_blocks=8, max_running=6)
    step(scheduler)
    assert list(scheduler.waiting) == [waiting]
    for index in range(1, 10):
        if index == 4:
            assert scheduler.is_full and scheduler.overdue(1.0)
            scheduler.end(large)
            step(scheduler)
            assert not scheduler.waiting and len(scheduler.running) == 4
        assert not scheduler.is_full, "at last two slots, which count again, and four places"
        scheduler.add(sequence_of(f"q{index}", 2))
    assert scheduler.is_full


def test_scored_tokens_have_a_bound_of_their_own() -> None:
    sizes = {"a": SCORED_TOKENS_PER_STEP // 2 + 1, "b": 200, "c": 8}
    first, second, third = (sequence_of(n, size, prompt_logprobs=0) for n, size in sizes.items())
    scheduler = scheduler_of([first, second, third])
    schedule = scheduler.schedule(FixedPace(tokens=1000))
    assert schedule.num_scored_tokens == SCORED_TOKENS_PER_STEP
    assert chunks(schedule) == [("a", 0, 65, True), ("b", 0, 64, False)]
    assert [chunk.scored for chunk in schedule.prefills] == [range(64), range(64)]
    scheduler.commit(schedule, [7])
    assert (first.num_scored_tokens, second.num_scored_tokens) == (64, 64)
    assert first.num_tokens_to_score == 0
    for _ in range(4):
        schedule = step(scheduler, FixedPace(tokens=1000))
        assert schedule.num_scored_tokens <= SCORED_TOKENS_PER_STEP
    assert second.num_scored_tokens == 199 and third.num_scored_tokens == 7
    for start, end, num_scored, wanted in (
        *((0, 4, 0, range(4)), (4, 10, 0, range(4, 9)), (4, 10, 6, range(6, 9))),
        *((0, 5, 6, range(0)), (4, 10, 9, range(0))),
    ):
        one = sequence_of("d", 10, prompt_logprobs=0)
        one.num_scored_tokens = num_scored
        found = PrefillChunk(one, start, end, end == 10).scored
        assert found == wanted or not (found or wanted)


def test_the_newest_gives_its_blocks_up_and_comes_back_first() -> None:
    old, new = sequence_of("a", 4, 20), sequence_of("b", 7, 20)
    scheduler = scheduler_of([old, new], num_blocks=3)
    step(scheduler)
    assert scheduler.running == [old, new] and scheduler.num_preemptions == 0
    later = sequence_of("c", 2)
    scheduler.add(later)
    schedule = scheduler.schedule(PACE)
    assert (schedule.decodes, scheduler.num_preemptions) == ([old], 1)
    assert list(scheduler.waiting) == [new, later], "what runs first runs again first"
    assert new.state is SequenceState.WAITING and new.num_computed_tokens == 0
    scheduler.commit(schedule, [7])
    scheduler.end(old)
    schedule = step(scheduler)
    assert chunks(schedule) == [("b", 4, 8, True), ("c", 0, 2, True)]
    assert scheduler.running == [new, later] and (new.admission, later.admission) == (2, 3)


def test_what_is_counted_of_a_prompt_is_counted_once() -> None:
    first = sequence_of("a", 40, 1)
    first.same_prompt_as = ended = sequence_of("w", 3)
    ended.move_to(SequenceState.ENDED)
    scheduler = scheduler_of([first])
    step(scheduler, FixedPace(tokens=16))
    assert (first.num_cached_tokens, first.num_prefilled_tokens) == (0, 16)
    assert first.same_prompt_as is None, "nobody is kept who has ended"
    assert not first.has_prompt_in_blocks
    step(scheduler)
    assert first.num_prefilled_tokens == 40 and first.deadline_s is None
    scheduler.end(first)
    again = sequence_of("a", 40, 9)
    scheduler.add(again)
    step(scheduler)
    assert again.num_cached_tokens == 36 and scheduler.prefix_hit_tokens == 36
    scheduler._preempt_newest()
    step(scheduler)
    assert scheduler.prefix_hit_tokens == 36, "its own blocks, this time"
    assert again.num_prefilled_tokens == 40, "of the prompt: outputs are no part of it"


def test_disorder_is_noticed() -> None:
    scheduler = scheduler_of(sequence_of(name, 3) for name in "ab")
    step(scheduler)
    scheduler.add(waiting := sequence_of("v", 3))
    first, second = scheduler.running
    for one, field, value in (
        *((scheduler, "running", order) for order in ([second, first], [first, first, second])),
        (first, "admission", 0),
        (second, "same_prompt_as", sequence_of("w", 3)),
        (first, "block_ids", first.block_ids[:-1]),
        (waiting, "admission", 9),
    ):
        scheduler.check_integrity()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(one, field, value)
            with pytest.raises(IntegrityError):
                scheduler.check_integrity()


@each_case(
    ("sequences", "how", "tokens", "later", "is_ahead"),
    [
        ([("a", 3, 1)], {}, 100, None, False),  # everybody ends
        ([("a", 3), ("b", 60)], {}, 16, None, False),  # a prompt continues
        ([("a", 3), ("b", 4)], {"num_blocks": 2}, 100, None, False),  # for the fifth token of b
        ([("a", 3), ("b", 4)], {"num_blocks": 3}, 100, None, True),
        # Whoever has a slot and blocks starts before.
        *(([("a", 3)], {"max_running": n}, 100, ("b", 3), n == 1) for n in (1, 2, 3)),
        *(([("a", 3)], {"num_blocks": n}, 100, ("b", 8), n == 2) for n in (2, 3)),
    ],
)
def test_when_there_is_a_step_ahead(
    sequences: list[tuple[str, int]], how: dict[str, int], tokens: int, later: Any, is_ahead: bool
) -> None:
    scheduler = scheduler_of((sequence_of(*one) for one in sequences), **how)
    schedule = scheduler.schedule(FixedPace(tokens=tokens))
    if later is not None:
        scheduler.add(sequence_of(*later))
    assert (scheduler.schedule_ahead(schedule, PACE) is not None) == is_ahead
    assert later is None or not scheduler.is_full_for("b")
    # One of who cannot start, and none once it can.
    scheduler = scheduler_of([sequence_of("a", 3)])
    schedule = scheduler.schedule(PACE)
    scheduler.add(held := sequence_of("b", 3, grammar=Grammar(text="")))
    ahead = scheduler.schedule_ahead(schedule, PACE)
    assert ahead is not None and len(scheduler.running[0].block_ids) == 1
    scheduler.commit(schedule, [7])
    held.grammar = COMPILED
    assert scheduler.schedule_ahead(ahead, PACE) is None
