"""Queues under any order of arrivals, holds, cancels and steps: no sequence is lost or starves.
Fair queueing between accounts: by weight and cost, known callers first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inference.engine.grammars import GrammarState
from inference.engine.kv_cache import KVCache
from inference.engine.scheduler import Scheduler
from inference.engine.sequence import Sequence
from inference.engine.step import Schedule, end_of_chunk
from inference.engine.waiting_queue import FairQueue, SchedulerLimits
from inference.protocol.engine import Grammar
from tests.inference.engine import conftest as asking

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

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=20),
        max_tokens=st.integers(1, 20),
        num_choices=st.integers(1, 4),
        grammar=st.sampled_from([None, None, Grammar(text="")]),
        account=st.sampled_from(["a", "heavy", "anonymous"]),
    )
    def submit_request(
        self, prompt: list[int], num_choices: int, account: str, **params: Any
    ) -> None:
        first: Sequence | None = None
        how = {"weight": 1 + (account == "heavy"), "is_anonymous": account == "anonymous"}
        how |= {"context_tokens": CONTEXT_TOKENS, "account": account, **params}
        for _ in range(num_choices):
            if not self.scheduler.is_full:
                sequence = asking.sequence_of(prompt, same_prompt_as=first, **how)
                first = first or sequence
                self.live.append(sequence)
                self.scheduler.add(sequence)

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
        started = [s for s in self.scheduler.running if s.admission > newest]
        waiting = list(self.scheduler.waiting)
        if started:
            assert not any(s.admission for s in waiting), "preempted ones come first"
        if any(s.is_anonymous for s in started):
            assert all(s.is_anonymous or s.is_held for s in waiting), "known ones come first"
        assert len(self.scheduler.running) <= min(4, max(num_running, running_limit))
        assert schedule.num_prefill_tokens <= budget
        for sequence in schedule.decodes:
            assert len(sequence.block_ids) * BLOCK_TOKENS >= len(sequence.token_ids)
        for chunk in schedule.prefills:
            assert len(chunk.sequence.block_ids) * BLOCK_TOKENS >= chunk.end > chunk.start
        self.run(schedule, [data.draw(st.integers(0, 1)) for _ in schedule.sampled])

    def run(self, schedule: Schedule, token_ids: list[int]) -> None:
        self.scheduler.commit(schedule, token_ids)
        ended = [s for s in schedule.sampled if len(s.token_ids) >= s.max_length]
        self.scheduler.end(*ended)
        self.live = [s for s in self.live if s not in ended]

    @invariant()
    def queues_are_sound(self) -> None:
        """The oldest of those that wait waits for its own grammar only."""
        self.scheduler.check_integrity()
        queued = [*self.scheduler.running, *self.scheduler.waiting]
        assert sorted(s.arrival for s in queued) == [s.arrival for s in self.live]
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


def test_a_prompt_is_cut_into_even_chunks() -> None:
    for length, budget, expected in (
        *((100, 512, [100]), (512, 512, [512]), (33, 32, [32, 1])),
        *((512, 152, [128, 128, 128, 128]), (500, 152, [128, 128, 128, 116])),
        *((513, 512, [272, 241]), (300, 150, [144, 80, 76])),
    ):
        ends = [0]
        while ends[-1] < length:
            ends.append(end_of_chunk(ends[-1], length, budget))
        assert [end - start for start, end in pairwise(ends)] == expected


PACE = FixedPace(tokens=100)


def sequence_of(name: str, num_prompt_tokens: int, max_tokens: int = 9, **own: Any) -> Sequence:
    """A sequence whose prompt no other one shares."""
    prompt = [ord(name[0]) + index for index in range(num_prompt_tokens)]
    own = {"account": "a", "arrival": int(name[1:] or 0) * 100 + ord(name[0])} | own
    return asking.sequence_of(prompt, name=name, max_tokens=max_tokens, **own)


def scheduler_of(
    sequences: Iterable[Sequence] = (), *, num_blocks: int = 200, max_running: int = 8
) -> Scheduler:
    cache = KVCache(num_blocks, BLOCK_TOKENS)
    scheduler = Scheduler(cache, SchedulerLimits(max_running=max_running, max_queue_depth=4))
    for sequence in sequences:
        scheduler.add(sequence)
    return scheduler


def step(scheduler: Scheduler, pace: FixedPace = PACE) -> Schedule:
    """Every token is a 7."""
    schedule = scheduler.schedule(pace)
    scheduler.commit(schedule, [7] * len(schedule.sampled))
    scheduler.check_integrity()
    return schedule


def chunks(schedule: Schedule) -> list[tuple[str, int, int, bool]]:
    return [(c.sequence.sequence_id, c.start, c.end, c.is_last) for c in schedule.prefills]


MAX_COST = 50


def add(queue: FairQueue[int], order: int, account: str, cost: int = 1, **how: Any) -> None:
    how = {"weight": 1, "is_anonymous": False} | how
    queue.add(order, account=account, order=order, cost=cost, **how)


def drain(queue: FairQueue[int]) -> list[int]:
    taken = []
    while queue:
        queue.check_integrity()
        taken.append(queue.head())
        assert queue.take() == taken[-1]
    return taken


@given(
    costs=st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, MAX_COST)), min_size=2, max_size=80
    ),
    weights=st.fixed_dictionaries({name: st.integers(1, 4) for name in "abc"}),
)
def test_accounts_that_both_wait_get_their_weights_shares(
    costs: list[tuple[str, int]], weights: dict[str, int]
) -> None:
    queue: FairQueue[int] = FairQueue()
    for order, (account, cost) in enumerate(costs):
        add(queue, order, account, cost, weight=weights[account])
    given_to: dict[str, float] = defaultdict(float)
    waiting = [account for account, _ in costs]
    for order in drain(queue):
        account, cost = costs[order]
        given_to[account] += cost / weights[account]
        waiting.remove(account)
        for one in {*waiting}:
            for other in {*waiting}:
                most = MAX_COST / weights[one] + MAX_COST / weights[other]
                assert given_to[one] - given_to[other] <= most + 0.01


def test_turns() -> None:
    queue: FairQueue[int] = FairQueue()
    assert queue.head() is None
    for order in range(3):
        add(queue, order, "anonymous", is_anonymous=True)
    for order in (3, 4):
        add(queue, order, "known", cost=1000)
    assert {*queue} == {*range(5)}
    assert drain(queue) == [3, 4, 0, 1, 2], "anonymous callers yield"
    queue = FairQueue()
    for order in range(50):
        add(queue, order, "a", cost=1000)
    add(queue, 60, "b", cost=10)
    add(queue, 61, "b", cost=10)
    for order in range(50):
        queue.remove(order)
    add(queue, 62, "a", cost=10)
    assert len(queue) == 3
    assert drain(queue) == [60, 62, 61], "an account does not pay for what was withdrawn"
    queue = FairQueue()
    for order in range(3):
        add(queue, order, "a", cost=10)
    add(queue, 3, "greedy", cost=1000)
    assert {queue.take(), queue.take()} == {0, 3}
    add(queue, 4, "greedy", cost=1)
    assert drain(queue) == [1, 2, 4], "who comes back pays for what it had"
    for order, account in ((5, "greedy"), (6, "a")):
        add(queue, order, account)
    assert drain(queue) == [5, 6], "until nobody waits"
    queue = FairQueue()  # passing accounts are forgotten
    add(queue, -1, "stays")
    add(queue, -2, "stays")
    for order in range(3000):
        add(queue, order, f"passer-{order}")
        if order % 2:
            queue.remove(order)
        else:
            add(queue, 10_000 + order, "stays")
            queue.take()
            queue.take()
    assert len(queue._clock._ends) < 400
