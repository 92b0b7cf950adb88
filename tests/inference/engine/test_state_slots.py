"""State slots under any order of admissions, steps that fail and are run again, preemptions and
ends: no step reads another state than its sequence's own."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from inference.engine.errors import IntegrityError
from inference.engine.kv_cache import NEW_TURN_TOKENS, KVCache
from inference.engine.scheduler import Scheduler
from inference.engine.sequence import Sequence
from inference.engine.state_slots import EMPTY_SLOT, StateSlots
from inference.engine.step import Schedule
from inference.engine.waiting_queue import SchedulerLimits
from tests.cases import each_case
from tests.inference.engine.asking import sequence_of
from tests.inference.engine.test_scheduler import (
    BLOCK_TOKENS,
    NUM_BLOCKS,
    FixedPace,
    SchedulerMachine,
)

MAX_RUNNING = 4
GARBAGE = (-1,)
Prefix = tuple[int, ...]


class StatesMachine(SchedulerMachine):
    """``stored`` plays the tensors: each slot holds the whole prefix that its state was made of."""

    num_snapshots = 3

    def __init__(self) -> None:
        super().__init__()
        num_slots = 1 + 2 * MAX_RUNNING + self.num_snapshots
        self.scheduler = Scheduler(
            KVCache(NUM_BLOCKS, BLOCK_TOKENS, num_state_slots=num_slots),
            SchedulerLimits(max_running=MAX_RUNNING, max_queue_depth=8),
        )
        self.stored: list[Prefix] = [GARBAGE] * num_slots
        self.stored[EMPTY_SLOT] = ()
        self.num_attempts = 1

    @rule(num_attempts=st.integers(1, 3))
    def fail_the_next_step(self, num_attempts: int) -> None:
        """It is run as often; all but the last attempt leave garbage where they wrote."""
        self.num_attempts = num_attempts

    def run(self, schedule: Schedule, token_ids: list[int]) -> None:
        for attempt in range(self.num_attempts, 0, -1):
            for sequence in schedule.decodes:
                self.write(sequence, len(sequence.token_ids), is_garbage=attempt > 1)
            for chunk in schedule.prefills:
                self.write(chunk.sequence, chunk.end, is_garbage=attempt > 1)
        self.num_attempts = 1
        super().run(schedule, token_ids)

    def write(self, sequence: Sequence, end: int, *, is_garbage: bool) -> None:
        read, written = sequence.state_slot, sequence.next_state_slot
        assert read is not None and written is not None
        assert self.stored[read] == tuple(sequence.token_ids[: sequence.num_computed_tokens])
        self.stored[written] = GARBAGE if is_garbage else tuple(sequence.token_ids[:end])

    @invariant()
    def snapshots_are_of_their_prefix(self) -> None:
        """Found as a prompt finds them: by walking the blocks."""
        states = self.scheduler.kv_cache.states
        assert states is not None
        allocator = self.scheduler.kv_cache.allocator
        prefixes: dict[int | str, Prefix] = {"": ()}
        left = {content: key for key, (_, content) in allocator._content.items()}
        while known := {c for c, (parent, _) in left.items() if parent in prefixes}:
            for content in known:
                parent, tokens = left.pop(content)
                prefixes[content] = prefixes[parent] + tokens
        for content, slot in states._snapshots.items():
            if content in prefixes:
                assert self.stored[slot] == prefixes[content]


TestStates = StatesMachine.TestCase
TestStates.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)


def scheduler_of(num_slots: int, *, num_blocks: int = 100) -> Scheduler:
    cache = KVCache(num_blocks, BLOCK_TOKENS, num_state_slots=num_slots)
    return Scheduler(cache, SchedulerLimits(max_running=MAX_RUNNING))


def run_through(scheduler: Scheduler, sequence: Sequence, num_tokens: int = 1) -> list[int]:
    """Runs the sequence until it has so many tokens, each a 7, and its end. Returns where its
    chunks ended."""
    scheduler.add(sequence)
    ends = []
    while sequence.num_output_tokens < num_tokens:
        schedule = scheduler.schedule(FixedPace(tokens=16))
        ends += [chunk.end for chunk in schedule.prefills]
        scheduler.commit(schedule, [7] * len(schedule.sampled))
        scheduler.check_integrity()
    scheduler.end(sequence)
    scheduler.check_integrity()
    return ends


PROMPT = list(range(40))


def test_a_prefix_is_known_where_a_snapshot_is() -> None:
    scheduler = scheduler_of(1 + 2 * MAX_RUNNING + 8)

    def num_cached(*tokens: int) -> int:
        sequence = sequence_of(tokens)
        run_through(scheduler, sequence)
        return sequence.num_cached_tokens or 0

    ends = run_through(scheduler, sequence_of(PROMPT))
    assert ends == [16, 32, 40], "cut where the next turn begins"
    assert ends[-2] == (len(PROMPT) - NEW_TURN_TOKENS) // BLOCK_TOKENS * BLOCK_TOKENS
    assert num_cached(*PROMPT[:-NEW_TURN_TOKENS], *range(100, 120)) == 32
    assert num_cached(*PROMPT[:24], *range(100, 120)) == 16
    run_through(scheduler, sequence_of(PROMPT, max_tokens=30), 20)
    following = num_cached(*PROMPT, *[7] * 20, *range(100, 120))
    assert following == 56, "an answer is known to the next turn: the last block that was full"


def test_the_oldest_snapshot_goes_first_and_one_that_was_used_stays() -> None:
    scheduler = scheduler_of(1 + 2 * MAX_RUNNING)  # for one sequence at a time six snapshots
    prompts = [[start] * 13 for start in range(6)]
    for prompt in prompts:
        run_through(scheduler, sequence_of(prompt))
    used = sequence_of([*prompts[0], 9])
    run_through(scheduler, used)
    assert used.num_cached_tokens == 4
    run_through(scheduler, sequence_of([6] * 13))
    known = [sequence_of([*prompt, 9]) for prompt in prompts[:2]]
    for sequence in known:
        run_through(scheduler, sequence)
    assert [sequence.num_cached_tokens for sequence in known] == [4, 0]
    run_through(scheduler, sequence_of([8] * 12))
    run_through(scheduler, sequence_of([9] * 5, max_tokens=100), 90)
    again = sequence_of([8] * 12)
    run_through(scheduler, again)
    assert again.num_cached_tokens == 4, "who decodes does not push out what prompts left"


def test_no_sequence_starts_from_an_invalidated_prefix() -> None:
    scheduler = scheduler_of(1 + 2 * MAX_RUNNING + 8)
    bad, again = sequence_of(PROMPT), sequence_of(PROMPT)
    scheduler.add(bad)
    for _ in range(2):
        scheduler.commit(scheduler.schedule(FixedPace(tokens=16)), [])
    scheduler.kv_cache.invalidate_prefix(bad)
    scheduler.end(bad)
    scheduler.check_integrity()
    run_through(scheduler, again)
    assert again.num_cached_tokens == 0


def test_no_more_sequences_run_than_have_slots() -> None:
    scheduler = scheduler_of(1 + 2 * 2)
    for name in "abc":
        scheduler.add(sequence_of([ord(name)] * 5, name=name))
    schedule = scheduler.schedule(FixedPace(tokens=100))
    assert scheduler.schedule_ahead(schedule, FixedPace()) is None, "it may have to run again"
    assert [s.sequence_id for s in schedule.sequences] == ["a", "b"]
    scheduler.commit(schedule, [7, 7])
    scheduler.end(scheduler.running[0])
    assert [s.sequence_id for s in scheduler.schedule(FixedPace()).sequences] == ["b", "c"]
    scheduler.check_integrity()
    # As many as may run leave no slot for a snapshot.
    scheduler = scheduler_of(1 + 2 * MAX_RUNNING)
    run_through(scheduler, sequence_of(PROMPT))
    for name in "abcd":
        scheduler.add(sequence_of([ord(name)] * 5, name=name))
    scheduler.commit(scheduler.schedule(FixedPace(tokens=100)), [7] * 4)
    scheduler.commit(scheduler.schedule(FixedPace(tokens=100)), [7] * 4)
    scheduler.check_integrity()
    assert scheduler.kv_cache.states is not None
    assert scheduler.kv_cache.states.num_snapshots == 0


@each_case(
    ("disorder", "problem"),
    [
        ("too many", "differ from what is held"),
        ("one too few", "differ from what is held"),
        ("writes what it reads", "would write"),
        ("without slots", "other runs without"),
        ("lost snapshot", "nobody can find"),
    ],
)
def test_disorder_is_noticed(disorder: str, problem: str) -> None:
    states, sequence = StateSlots(9), sequence_of([1] * 5)
    states.admit(sequence, None)
    states.advance(sequence)
    states.check_integrity([sequence])
    running = [] if disorder == "too many" else [sequence]
    known = {5, 6}
    match disorder:
        case "one too few":
            sequence.state_slot = EMPTY_SLOT
        case "writes what it reads":
            states.keep(sequence, 5)
            states._references[sequence.next_state_slot or 0] = 0
            states._free.append(sequence.next_state_slot or 0)
            sequence.next_state_slot = sequence.state_slot
            states._references[sequence.state_slot or 0] += 1
        case "without slots":
            running.append(sequence_of([1], name="other"))
        case "lost snapshot":
            states.keep(sequence, 5)
            states.check_known({5, 6})
            known = {6}
    with pytest.raises(IntegrityError, match=problem):
        states.check_known(known)
        states.check_integrity(running)
