"""Blocks and state slots under any order of admissions, growth, steps that fail and are run again,
and release: no step reads what is not its sequence's own. Blocks that slid out of a window go."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inference.engine.errors import IntegrityError
from inference.engine.kv_cache import NEW_TURN_TOKENS, KVCache
from inference.engine.scheduler import Scheduler
from inference.engine.sequence import Sequence
from inference.engine.state_slots import EMPTY_SLOT, StateSlots
from inference.engine.step import Schedule
from inference.engine.waiting_queue import SchedulerLimits
from tests.inference.engine import test_scheduler
from tests.inference.engine.conftest import Answers, build_pair, poison, sequence_of, submit
from tests.inference.engine.test_scheduler import FixedPace, SchedulerMachine

BLOCK_TOKENS = 4
NUM_BLOCKS = 12


class KVCacheMachine(RuleBasedStateMachine):
    """``stored`` plays the tensors: what each block holds, as a sequence would have written it."""

    @initialize(kept_blocks=st.sampled_from([NUM_BLOCKS, 3]))
    def begin(self, kept_blocks: int) -> None:
        self.cache = KVCache(NUM_BLOCKS, BLOCK_TOKENS, kept_blocks)
        self.kept_blocks, self.most_held = kept_blocks, 0
        self.seen: set[int] = set()
        """The blocks that any sequence has had."""
        self.live: list[Sequence] = []
        self.stored: dict[int, list[tuple[int, ...]]] = {}

    def write(self, sequence: Sequence, end: int) -> None:
        """Compute up to ``end``: each slot records the whole prefix that its numbers depend on."""
        for position in range(sequence.num_computed_tokens, end):
            block_id = sequence.block_ids[position // BLOCK_TOKENS]
            slots = self.stored.setdefault(block_id, [()] * BLOCK_TOKENS)
            slots[position % BLOCK_TOKENS] = tuple(sequence.token_ids[: position + 1])
        sequence.num_computed_tokens = end
        self.cache.register_computed(sequence)

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=24))
    def admit(self, tokens: list[int]) -> None:
        sequence = sequence_of(tokens)
        free_before = self.cache.allocator.num_free
        if self.cache.admit(sequence):
            assert sequence.num_computed_tokens < len(tokens)
            self.live.append(sequence)
        else:
            assert (self.cache.allocator.num_free, sequence.block_ids) == (free_before, [])

    @precondition(lambda self: self.live)
    @rule(data=st.data(), token=st.none() | st.integers(0, 1))
    def compute(self, data: st.DataObject, token: int | None) -> None:
        """Up to somewhere, or all there is and another token."""
        sequence = data.draw(st.sampled_from(self.live))
        num_tokens = len(sequence.token_ids)
        if token is None:
            self.write(sequence, data.draw(st.integers(sequence.num_computed_tokens, num_tokens)))
            return
        self.write(sequence, num_tokens)
        if self.cache.grow(sequence, num_tokens + 1):
            sequence.token_ids.append(token)
        else:
            assert self.cache.allocator.num_free == 0

    @precondition(lambda self: self.live)
    @rule(data=st.data(), is_invalid=st.booleans())
    def release(self, data: st.DataObject, is_invalid: bool) -> None:
        sequence = data.draw(st.sampled_from(self.live))
        self.live.remove(sequence)
        block_ids = set(sequence.block_ids)
        if is_invalid:
            self.cache.invalidate_prefix(sequence)
        self.cache.release(sequence)
        again = sequence_of([*sequence.token_ids, 0])
        if is_invalid and self.cache.admit(again):
            self.most_held = max(self.most_held, self.cache.allocator.num_used)
            self.seen.update(again.block_ids)
            num_shared = again.num_computed_tokens // BLOCK_TOKENS
            assert not block_ids.intersection(again.block_ids[:num_shared])
            self.cache.release(again)

    @invariant()
    def accounts_balance(self) -> None:
        self.cache.check_integrity(self.live)
        held = {block for sequence in self.live for block in sequence.block_ids}
        assert self.cache.allocator.num_used == len(held)
        self.most_held = max(self.most_held, len(held))
        self.seen |= held
        assert len(self.seen) <= max(self.most_held, self.kept_blocks)
        for sequence in self.live:  # each reads its own tokens
            for position in range(sequence.num_computed_tokens):
                slots = self.stored[sequence.block_ids[position // BLOCK_TOKENS]]
                expected = tuple(sequence.token_ids[: position + 1])
                assert slots[position % BLOCK_TOKENS] == expected


TestKVCache = KVCacheMachine.TestCase
TestKVCache.settings = settings(stateful_step_count=40)


def run_through(cache: KVCache, tokens: list[int], seen: set[int], salt: str = "") -> int:
    """One request from its prompt to its release; how many of its tokens were known. Its blocks are
    added to ``seen``."""
    sequence = sequence_of(tokens, cache_salt=salt)
    assert cache.admit(sequence)
    seen.update(sequence.block_ids)
    num_known = sequence.num_computed_tokens
    sequence.num_computed_tokens = len(tokens)
    cache.register_computed(sequence)
    cache.release(sequence)
    cache.check_integrity([])
    return num_known


def test_past_prompts_alone_touch_no_more_blocks_than_are_kept() -> None:
    cache, seen = KVCache(100, BLOCK_TOKENS, kept_blocks=6), set[int]()
    for prompt in range(40):
        run_through(cache, [prompt] * 8, seen)
    assert len(seen) == 6
    assert run_through(cache, [39] * 8 + [0], seen) == 8
    assert run_through(cache, [36] * 8 + [0], seen) == 0
    # A prompt longer than what is kept is known the next time.
    cache, seen = KVCache(100, BLOCK_TOKENS, kept_blocks=2), set()
    run_through(cache, [1] * 40, seen)
    assert len(seen) == 10
    assert run_through(cache, [1] * 41, seen) == 40
    # Sequences get every block, whatever is kept.
    cache = KVCache(12, BLOCK_TOKENS, kept_blocks=0)
    assert [cache.admit(sequence_of([token] * 12)) for token in range(5)] == [True] * 4 + [False]
    # An account's blocks are not another's.
    cache = KVCache(16, BLOCK_TOKENS)
    known = [run_through(cache, [7] * 13, seen, salt) for salt in ("acme", "acme", "bert", "")]
    assert known == [0, 12, 0, 0]


def test_oldest_reusable_block_goes_first_and_tails_before_heads() -> None:
    cache = KVCache(4, BLOCK_TOKENS)
    both = sequence_of([1] * 8), sequence_of([2] * 8)
    for sequence in both:
        assert cache.admit(sequence)
        sequence.num_computed_tokens = 8
        cache.register_computed(sequence)
    oldest = both[0].block_ids[::-1]
    for sequence in both:
        cache.release(sequence)
    assert [cache.allocator.allocate(), cache.allocator.allocate()] == oldest


NUM_TOKENS = 120


@pytest.mark.parametrize("path", [pytest.param("torch", marks=pytest.mark.slow), "native"])
def test_two_run_to_their_ends_where_their_whole_contexts_would_not_fit(
    path: str, native_cache_dir: Path
) -> None:
    """In a window of 24 tokens."""
    sliding = build_pair("mistral", path, native_cache_dir)
    contexts = 2 * -(-(40 + NUM_TOKENS) // sliding.block_tokens)
    engine = sliding.engine(contexts * 2 // 3 * sliding.block_tokens, prefill_tokens=9)
    prompts = {n: random.Random(n).choices(range(128), k=k) for n, k in (("a", 40), ("b", 11))}
    for name, prompt in prompts.items():
        submit(engine, name, prompt, NUM_TOKENS)
    answers = Answers()
    while engine.has_work:
        answers.step(engine)
        engine.scheduler.check_integrity()
        held = {b for s in engine.scheduler.running for b in s.block_ids[s.num_dropped_blocks :]}
        free = {*range(engine.scheduler.kv_cache.allocator.num_blocks)} - held
        poison(engine.executor.runner.kv, free, sliding.block_tokens)  # type: ignore[attr-defined]
    assert engine.stats().num_preemptions == 0
    assert answers.tokens == {name: sliding.greedy(p, NUM_TOKENS) for name, p in prompts.items()}


def test_a_sequence_holds_its_window_and_what_is_not_computed_yet() -> None:
    # The row at 8 sees 3 to 8, that at 9 sees 4 to 9, that at 16 sees 11 to 16.
    for window, held_by_end in ((6, {3: 10, 8: 10, 9: 9, 16: 8, 40: 2}), (None, {3: 10, 40: 10})):
        cache = KVCache(num_blocks=16, block_tokens=4, window=window)
        sequence = sequence_of(range(40))
        assert cache.admit(sequence)
        for num_computed, held in held_by_end.items():
            sequence.num_computed_tokens = num_computed
            cache.register_computed(sequence)
            assert cache.allocator.num_used == held
            cache.check_integrity([sequence])
        cache.release(sequence)
        cache.check_integrity([])
        assert cache.allocator.num_used == 0
        assert cache.admit(sequence) and sequence.num_dropped_blocks == 0
    # Blocks that slid out are forgotten, unless they are another's now.
    cache = KVCache(num_blocks=6, block_tokens=4, window=6)
    first, other = sequence_of(range(24)), sequence_of([77] * 9)
    assert cache.admit(first)
    first.num_computed_tokens = 24
    cache.register_computed(first)
    assert len(cache.known_prefix(first)[0]) == 5
    cache.invalidate_prefix(first)
    assert cache.known_prefix(first)[0] == []
    cache.check_integrity([first])
    assert cache.admit(other), "in blocks that the first one released"
    assert set(other.block_ids) & set(first.block_ids)
    other.num_computed_tokens = 8
    cache.register_computed(other)
    known = cache.known_prefix(other)[0]
    assert len(known) == 2
    cache.invalidate_prefix(first)
    assert cache.known_prefix(other)[0] == known
    cache.check_integrity([first, other])


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
            KVCache(test_scheduler.NUM_BLOCKS, BLOCK_TOKENS, num_state_slots=num_slots),
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
        states, allocator = self.scheduler.kv_cache.states, self.scheduler.kv_cache.allocator
        assert states is not None
        prefixes: dict[int | str, Prefix] = {"": ()}
        left = {content: key for key, (_, content) in allocator._content.items()}
        while known := {c for c, (parent, _) in left.items() if parent in prefixes}:
            for content in known:
                parent, tokens = left.pop(content)
                prefixes[content] = prefixes[parent] + tokens
        for content in prefixes.keys() & states._snapshots.keys():
            assert self.stored[states._snapshots[content]] == prefixes[content]


TestStates = StatesMachine.TestCase
TestStates.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)


def scheduler_of(num_slots: int) -> Scheduler:
    cache = KVCache(100, BLOCK_TOKENS, num_state_slots=num_slots)
    return Scheduler(cache, SchedulerLimits(max_running=MAX_RUNNING))


def run_to_end(scheduler: Scheduler, sequence: Sequence, num_tokens: int = 1) -> list[int]:
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
    bad, again = sequence_of(PROMPT), sequence_of(PROMPT)
    scheduler.add(bad)
    for _ in range(2):
        scheduler.commit(scheduler.schedule(FixedPace(tokens=16)), [])
    scheduler.kv_cache.invalidate_prefix(bad)
    scheduler.end(bad)
    ends = run_to_end(scheduler, again)
    assert again.num_cached_tokens == 0, "it was invalidated"
    assert ends == [16, 32, 40], "cut where the next turn begins"
    assert ends[-2] == (len(PROMPT) - NEW_TURN_TOKENS) // BLOCK_TOKENS * BLOCK_TOKENS
    answered = [*PROMPT, *[7] * 20]
    for prompt, cached in (
        (PROMPT[:-NEW_TURN_TOKENS], 32),
        (PROMPT[:24], 16),
        (answered, 56),  # an answer is known to the next turn: the last block that was full
    ):
        if prompt is answered:
            run_to_end(scheduler, sequence_of(PROMPT, max_tokens=30), 20)
        following = sequence_of([*prompt, *range(100, 120)])
        run_to_end(scheduler, following)
        assert following.num_cached_tokens == cached


def test_the_oldest_snapshot_goes_first_and_one_that_was_used_stays() -> None:
    scheduler = scheduler_of(1 + 2 * MAX_RUNNING)  # for one sequence at a time six snapshots

    def num_cached(*tokens: int) -> int | None:
        run_to_end(scheduler, sequence := sequence_of(tokens))
        return sequence.num_cached_tokens

    for start in range(6):
        num_cached(*[start] * 13)
    assert num_cached(*[0] * 13, 9) == 4
    num_cached(*[6] * 13)
    assert [num_cached(*[start] * 13, 9) for start in (0, 1)] == [4, 0]
    num_cached(*[8] * 12)
    run_to_end(scheduler, sequence_of([9] * 5, max_tokens=100), 90)
    assert num_cached(*[8] * 12) == 4, "who decodes does not push out what prompts left"


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
    run_to_end(scheduler, sequence_of(PROMPT))
    for name in "abcd":
        scheduler.add(sequence_of([ord(name)] * 5, name=name))
    for _ in range(2):
        scheduler.commit(scheduler.schedule(FixedPace(tokens=100)), [7] * 4)
    scheduler.check_integrity()
    states = scheduler.kv_cache.states
    assert states is not None and states.num_snapshots == 0


def test_disorder_is_noticed() -> None:
    for disorder, problem in (
        ("too many", "differ from what is held"),
        ("one too few", "differ from what is held"),
        ("writes what it reads", "would write"),
        ("without slots", "other runs without"),
        ("lost snapshot", "nobody can find"),
    ):
        states, sequence = StateSlots(9), sequence_of([1] * 5)
        states.admit(sequence, None)
        states.advance(sequence)
        states.check_integrity([sequence])
        running, known = [sequence], {5, 6}
        match disorder:
            case "too many":
                running = []
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
            case _:
                states.keep(sequence, 5)
                states.check_known({5, 6})
                known = {6}
        with pytest.raises(IntegrityError, match=problem):
            states.check_known(known)
            states.check_integrity(running)
