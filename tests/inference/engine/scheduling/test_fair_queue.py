"""Fair queueing between accounts: by weight and cost, known callers first, no account starves."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inference.engine.scheduling.waiting_queue import FairQueue

MAX_COST = 50


@dataclass(frozen=True, slots=True)
class Job:
    order: int
    account: str
    cost: int = 1
    weight: int = 1
    is_anonymous: bool = False


def add(queue: FairQueue[Job], job: Job) -> Job:
    queue.add(
        job,
        account=job.account,
        order=job.order,
        cost=job.cost,
        weight=job.weight,
        is_anonymous=job.is_anonymous,
    )
    return job


def drain(queue: FairQueue[Job]) -> list[Job]:
    return [queue.take() for _ in range(len(queue))]


class FairQueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue: FairQueue[Job] = FairQueue()
        self.here: set[Job] = set()
        self.orders = st.integers(0, 10**6)
        self.used: set[int] = set()

    @rule(
        order=st.integers(0, 10**6),
        account=st.sampled_from("abcd"),
        cost=st.integers(0, MAX_COST),
        weight=st.integers(-1, 4),
        is_anonymous=st.booleans(),
    )
    def add(self, order: int, account: str, cost: int, weight: int, is_anonymous: bool) -> None:
        if order not in self.used:
            self.used.add(order)
            self.here.add(add(self.queue, Job(order, account, cost, weight, is_anonymous)))

    @precondition(lambda self: self.here)
    @rule()
    def take(self) -> None:
        head = self.queue.head()
        taken = self.queue.take()
        assert taken == head
        assert not taken.is_anonymous or all(job.is_anonymous for job in self.here)
        rivals = [
            job
            for job in self.here
            if (job.account, job.is_anonymous) == (taken.account, taken.is_anonymous)
        ]
        assert taken == min(rivals, key=lambda job: job.order)
        self.here.remove(taken)

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        ordered = sorted(self.here, key=lambda job: job.order)
        job = data.draw(st.sampled_from(ordered))
        self.queue.remove(job)
        self.here.remove(job)

    @invariant()
    def nothing_is_lost(self) -> None:
        self.queue.check_integrity()
        assert len(self.queue) == len(self.here)
        assert set(self.queue) == self.here
        assert (self.queue.head() is None) == (not self.here)


TestFairQueue = FairQueueMachine.TestCase
TestFairQueue.settings = settings(stateful_step_count=30)


@given(
    costs=st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, MAX_COST)), min_size=2, max_size=80
    ),
    weights=st.fixed_dictionaries({name: st.integers(1, 4) for name in "abc"}),
)
def test_accounts_that_both_wait_get_their_weights_shares(
    costs: list[tuple[str, int]], weights: dict[str, int]
) -> None:
    queue: FairQueue[Job] = FairQueue()
    for order, (account, cost) in enumerate(costs):
        add(queue, Job(order, account, cost, weights[account]))
    given_to: dict[str, float] = defaultdict(float)
    num_left = {name: sum(account == name for account, _ in costs) for name in "abc"}
    for job in drain(queue):
        given_to[job.account] += job.cost / job.weight
        num_left[job.account] -= 1
        waiting = [name for name in "abc" if num_left[name]]
        for one in waiting:
            for other in waiting:
                most = MAX_COST / weights[one] + MAX_COST / weights[other]
                assert given_to[one] - given_to[other] <= most + 0.01


def test_a_burst_delays_another_account_by_one_item() -> None:
    queue: FairQueue[Job] = FairQueue()
    for order in range(200):
        add(queue, Job(order, "burst", cost=100))
    for _ in range(7):
        queue.take()
    add(queue, Job(200, "single", cost=1))
    assert "single" in [queue.take().account for _ in range(2)]


def test_anonymous_callers_yield_and_are_served_when_nobody_else_waits() -> None:
    queue: FairQueue[Job] = FairQueue()
    for order in range(3):
        add(queue, Job(order, "anonymous", is_anonymous=True))
    add(queue, Job(3, "known", cost=1000))
    add(queue, Job(4, "known", cost=1000))
    assert [job.order for job in drain(queue)] == [3, 4, 0, 1, 2]


def test_an_account_does_not_pay_for_what_was_withdrawn() -> None:
    queue: FairQueue[Job] = FairQueue()
    withdrawn = [add(queue, Job(order, "a", cost=1000)) for order in range(50)]
    add(queue, Job(60, "b", cost=10))
    add(queue, Job(61, "b", cost=10))
    for job in withdrawn:
        queue.remove(job)
    add(queue, Job(62, "a", cost=10))
    assert [job.order for job in drain(queue)] == [60, 62, 61]


def test_an_account_that_comes_back_pays_for_what_it_had() -> None:
    queue: FairQueue[Job] = FairQueue()
    for order in range(3):
        add(queue, Job(order, "a", cost=10))
    add(queue, Job(3, "greedy", cost=1000))
    taken = [queue.take().account for _ in range(2)]
    assert sorted(taken) == ["a", "greedy"]
    add(queue, Job(4, "greedy", cost=1))
    assert [job.account for job in drain(queue)] == ["a", "a", "greedy"]


def test_passing_accounts_are_forgotten() -> None:
    queue: FairQueue[Job] = FairQueue()
    add(queue, Job(-1, "stays", cost=1))
    add(queue, Job(-2, "stays", cost=1))
    for order in range(3000):
        job = add(queue, Job(order, f"passer-{order}"))
        if order % 2:
            queue.remove(job)
        else:
            add(queue, Job(10_000 + order, "stays", cost=1))
            queue.take()
            queue.take()
    assert len(queue._accounts) < 400
