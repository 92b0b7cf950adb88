"""Steps that are launched before the last one is read: who has a row in them, and who has none."""

from __future__ import annotations

from inference.protocol.sampling import Grammar
from tests.cases import each_case
from tests.inference.engine.scheduling.small_scheduler import (
    PACE,
    scheduler_of,
    sequence_of,
)
from tests.inference.engine.scheduling.test_scheduler import COMPILED, FixedPace


def test_a_step_ahead_has_a_row_for_each_that_continues() -> None:
    long, short = sequence_of("a", 3, 9), sequence_of("b", 3, 2)
    scheduler = scheduler_of([long, short])
    schedule = scheduler.schedule(PACE)
    ahead = scheduler.schedule_ahead(schedule, PACE)
    assert ahead is not None and ahead.decodes == [long, short] and ahead.prefills == []
    scheduler.commit(schedule, [7, 7])
    further = scheduler.schedule_ahead(ahead, PACE)
    assert further is not None and further.decodes == [long], "the other ends by its length"
    assert len(long.block_ids) == 2, "for its fifth token"


def test_a_step_ahead_of_who_cannot_start_and_none_once_it_can() -> None:
    scheduler = scheduler_of([sequence_of("a", 3)])
    schedule = scheduler.schedule(PACE)
    held = sequence_of("b", 3, grammar=Grammar(text=""))
    scheduler.add(held)
    ahead = scheduler.schedule_ahead(schedule, PACE)
    assert ahead is not None
    scheduler.commit(schedule, [7])
    held.grammar = COMPILED
    assert scheduler.schedule_ahead(ahead, PACE) is None


def test_a_launched_row_of_who_has_ended_counts_for_nothing() -> None:
    stays, leaves = sequence_of("a", 3), sequence_of("b", 3)
    scheduler = scheduler_of([stays, leaves])
    schedule = scheduler.schedule(PACE)
    ahead = scheduler.schedule_ahead(schedule, PACE)
    assert ahead is not None
    scheduler.commit(schedule, [7, 8])
    assert schedule.sequences == ahead.sequences == [stays, leaves]
    assert not ahead.has_ended_rows
    scheduler.end(leaves)
    assert ahead.has_ended_rows
    assert ahead.without_ended_rows().decodes == [stays]
    further = scheduler.schedule_ahead(ahead, PACE)
    assert further is not None and further.decodes == [stays]
    scheduler.commit(ahead, [9, 9])
    assert stays.token_ids[3:] == [7, 9] and leaves.token_ids[3:] == [8]
    assert stays.num_computed_tokens == 4
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
    sequences: list[tuple[str, int]],
    how: dict[str, int],
    tokens: int,
    later: tuple[str, int] | None,
    is_ahead: bool,
) -> None:
    scheduler = scheduler_of((sequence_of(*one) for one in sequences), **how)
    schedule = scheduler.schedule(FixedPace(tokens=tokens))
    if later is not None:
        scheduler.add(sequence_of(*later))
    assert (scheduler.schedule_ahead(schedule, PACE) is not None) == is_ahead
    assert later is None or not scheduler.is_full_for("b")
