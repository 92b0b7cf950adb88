"""Queues under any order of arrivals, holds, cancels and steps: no sequence is lost or starves."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inference.engine.cache.kv_cache import KVCache
from inference.engine.sampling.grammars import GrammarState
from inference.engine.scheduling.scheduler import Scheduler
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from inference.engine.sequence import Sequence
from inference.engine.step import CHUNK_MULTIPLE, Schedule, end_of_chunk
from inference.protocol.sampling import Grammar, SamplingParams
from tests.cases import each_case
from tests.inference.engine import asking

BLOCK_TOKENS = 4
NUM_BLOCKS = 8
CONTEXT_TOKENS = BLOCK_TOKENS * NUM_BLOCKS
COMPILED = GrammarState.__new__(GrammarState)
"""A grammar without content: the tests ask only whether there is one."""


@dataclass(frozen=True, slots=True)
class FixedPace:
    tokens: int = 8
    running_limit: int = 99

    def prefill_tokens(self, num_decode_rows: int) -> int:
        return self.tokens


class SchedulerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler(
            KVCache(NUM_BLOCKS, BLOCK_TOKENS), SchedulerLimits(max_running=4, max_queue_depth=8)
        )
        self.live: list[Sequence] = []
        self.num_submitted = 0

    def submit(
        self,
        prompt: list[int],
        max_tokens: int,
        first: Sequence | None,
        grammar: Grammar | None,
        account: str,
    ) -> None:
        if self.scheduler.is_full:
            return
        self.num_submitted += 1
        sequence = Sequence(
            f"r{self.num_submitted}",
            prompt,
            SamplingParams(max_tokens=max_tokens, grammar=grammar),
            context_tokens=CONTEXT_TOKENS,
            arrival=self.num_submitted,
            deadline_s=0.0,
            same_prompt_as=first,
            account=account,
            weight=2 if account == "heavy" else 1,
            is_anonymous=account == "anonymous",
        )
        self.live.append(sequence)
        self.scheduler.add(sequence)

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=20),
        max_tokens=st.integers(1, 20),
        num_choices=st.integers(1, 4),
        grammar=st.sampled_from([None, None, Grammar(text="")]),
        account=st.sampled_from(["a", "heavy", "anonymous"]),
    )
    def submit_request(
        self,
        prompt: list[int],
        max_tokens: int,
        num_choices: int,
        grammar: Grammar | None,
        account: str,
    ) -> None:
        first = None
        for _ in range(num_choices):
            self.submit(prompt, max_tokens, first, grammar, account)
            first = first or (self.live[-1] if self.live else None)

    @precondition(lambda self: any(s.grammar is None and s.params.grammar for s in self.live))
    @rule(data=st.data())
    def compile(self, data: st.DataObject) -> None:
        pending = [s for s in self.live if s.params.grammar is not None and s.grammar is None]
        data.draw(st.sampled_from(pending)).grammar = COMPILED

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.live))
        self.live.remove(sequence)
        self.scheduler.end(sequence)

    @rule(budget=st.integers(1, 16), running_limit=st.integers(1, 6), data=st.data())
    def step(self, budget: int, running_limit: int, data: st.DataObject) -> None:
        num_running = len(self.scheduler.running)
        newest = max((s.admission for s in self.live), default=0)
        schedule = self.scheduler.schedule(FixedPace(budget, running_limit))
        self.check_turns([s for s in self.scheduler.running if s.admission > newest])
        assert len(self.scheduler.running) <= max(num_running, running_limit)
        self.check_rows(schedule, budget)
        self.run(schedule, [data.draw(st.integers(0, 1)) for _ in schedule.sampled])

    def check_turns(self, started: list[Sequence]) -> None:
        """``started`` in this step for the first time."""
        waiting = list(self.scheduler.waiting)
        if started:
            assert not any(s.admission for s in waiting), "preempted ones come first"
        if any(s.is_anonymous for s in started):
            assert all(s.is_anonymous or s.is_held for s in waiting), "known ones come first"

    def check_rows(self, schedule: Schedule, budget: int) -> None:
        assert schedule.num_prefill_tokens <= budget
        assert len(self.scheduler.running) <= 4
        for sequence in schedule.decodes:
            assert len(sequence.block_ids) * BLOCK_TOKENS >= len(sequence.token_ids)
        for chunk in schedule.prefills:
            assert len(chunk.sequence.block_ids) * BLOCK_TOKENS >= chunk.end > chunk.start

    def run(self, schedule: Schedule, token_ids: list[int]) -> None:
        rows = schedule.sampled
        self.scheduler.commit(schedule, token_ids)
        ended = [s for s in rows if len(s.token_ids) >= s.max_length]
        self.scheduler.end_many(ended)
        self.live = [s for s in self.live if s not in ended]

    @invariant()
    def queues_are_sound(self) -> None:
        self.scheduler.check_integrity()
        queued = [*self.scheduler.running, *self.scheduler.waiting]
        assert sorted(s.arrival for s in queued) == [s.arrival for s in self.live]

    @invariant()
    def nothing_is_held_for_ever(self) -> None:
        """The oldest of those that wait waits for its own grammar only."""
        if self.scheduler.waiting and not self.scheduler.running:
            oldest = next(iter(self.scheduler.waiting))
            assert not oldest.is_held or oldest.params.grammar is not None

    def teardown(self) -> None:
        """Checks that with every grammar compiled all get to their end, in a bounded number of
        steps."""
        for sequence in self.live:
            sequence.grammar = COMPILED
        for _ in range(60 * (len(self.live) + 1)):
            schedule = self.scheduler.schedule(FixedPace(16))
            assert not (schedule.is_empty and self.live)
            self.run(schedule, [1] * len(schedule.sampled))
            if not self.live:
                break
        assert not self.live
        assert self.scheduler.kv_cache.allocator.num_used == 0


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(stateful_step_count=40)


def sequence_of(arrival: int, prompt: list[int], first: Sequence | None = None, **own: Any) -> Any:
    own = {"account": "a", "arrival": arrival, "same_prompt_as": first, "max_tokens": 9} | own
    return asking.sequence_of(prompt, context_tokens=CONTEXT_TOKENS, **own)


def test_a_held_sequence_lets_later_ones_pass_and_is_next_once_it_can_start() -> None:
    scheduler = Scheduler(KVCache(16, BLOCK_TOKENS), SchedulerLimits(max_running=3))
    first = sequence_of(1, [1] * 12)
    choice = sequence_of(2, [1] * 12, first)
    other, last = sequence_of(3, [2] * 4), sequence_of(4, [2] * 4)
    for sequence in (first, choice, other, last):
        scheduler.add(sequence)
    schedule = scheduler.schedule(FixedPace())
    assert [chunk.sequence for chunk in schedule.prefills] == [first]
    scheduler.commit(schedule, [])
    schedule = scheduler.schedule(FixedPace())
    assert [chunk.sequence for chunk in schedule.prefills] == [first, other]
    scheduler.commit(schedule, [5, 6])
    schedule = scheduler.schedule(FixedPace())
    assert scheduler.running == [first, other, choice]
    assert list(scheduler.waiting) == [last]
    assert choice.num_cached_tokens == 8
    assert choice.block_ids[:2] == first.block_ids[:2]


def test_who_runs_is_not_preempted_for_one_that_came_before_and_started_later() -> None:
    scheduler = Scheduler(KVCache(NUM_BLOCKS, BLOCK_TOKENS), SchedulerLimits(max_running=3))
    burst = [sequence_of(arrival, [arrival] * 8, account="burst") for arrival in range(3)]
    single = sequence_of(3, [9] * 8, account="single")
    for sequence in (*burst, single):
        scheduler.add(sequence)
    while scheduler.num_preemptions == 0:
        schedule = scheduler.schedule(FixedPace(100))
        scheduler.commit(schedule, [5] * len(schedule.sampled))
        scheduler.check_integrity()
    assert single in scheduler.running
    assert next(iter(scheduler.waiting)) is burst[1], "it had started last"


def test_an_account_s_blocks_are_not_another_s() -> None:
    cache = KVCache(16, BLOCK_TOKENS)
    known: dict[str, int] = {}
    for salt in ("acme", "acme", "bert", ""):
        sequence = sequence_of(1, [7] * 13, cache_salt=salt)
        assert cache.admit(sequence)
        known[salt] = sequence.num_computed_tokens
        sequence.num_computed_tokens = 13
        cache.register_computed(sequence)
        cache.release(sequence)
        cache.check_integrity([])
    assert known == {"acme": 12, "bert": 0, "": 0}


def chunks(length: int, budget: int) -> list[int]:
    ends = [0]
    while ends[-1] < length:
        ends.append(end_of_chunk(ends[-1], length, budget))
    return [end - start for start, end in pairwise(ends)]


@each_case(
    ("length", "budget", "expected"),
    [
        (100, 512, [100]),
        (512, 512, [512]),
        (512, 152, [128, 128, 128, 128]),
        (500, 152, [128, 128, 128, 116]),
        (513, 512, [272, 241]),
        (33, 32, [32, 1]),
        (300, 150, [144, 80, 76]),
    ],
)
def test_a_prompt_is_cut_into_even_chunks(length: int, budget: int, expected: list[int]) -> None:
    assert chunks(length, budget) == expected


@given(st.integers(1, 5000), st.integers(1, 600))
def test_chunks_hold_what_steps_have_time_for(length: int, budget: int) -> None:
    sizes = chunks(length, budget)
    assert sum(sizes) == length and max(sizes) <= budget
    if budget >= 2 * CHUNK_MULTIPLE:
        assert all(size % CHUNK_MULTIPLE == 0 for size in sizes[:-1])
        assert len(sizes) <= -(-length // (budget - CHUNK_MULTIPLE)) + 1
