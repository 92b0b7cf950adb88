"""The sequences that wait to run, the choice of the next, and the operator's limits of their queue.

    preempted    have run before, in order of admission: always first
    fair         never started and ready to, in turns by account (``FairQueue``)
    held         cannot start yet (``Sequence.is_held``); joins the others of its account, in order
                 of arrival, once it can

``FairQueue`` lets no account wait for more than one item of another, by start-time fair queueing:
each account's first item has a start on a virtual clock, and the earliest start is next.

    acme    [ 12 | 13 | 14 … 200 ]    its first item starts at 4096
    bert    [ 201 ]                   starts at 2048  ◀─ next

    taken: the clock is set to its start; the account's next item starts cost / weight later
    added to an account with nothing waiting: it starts now, or where the account's last item ended

Anonymous callers have a clock of their own and are taken only while no known account waits. One
thread uses the queue.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Generic, TypeVar

from inference.engine.errors import IntegrityError
from inference.engine.sequence import Sequence
from inference.protocol.load import LoadSpec

WEIGHT_UNIT = 1 << 16
"""The factor that keeps a cost divided by a weight whole, and large enough."""
SWEEP_BEYOND = 64

Item = TypeVar("Item", bound=Hashable)


Caller = tuple[bool, str]
"""Whether it is anonymous, and its account."""


class FairClock:
    """When each caller is served next. Known and anonymous ones have a virtual time each."""

    def __init__(self) -> None:
        self._now = {False: 0, True: 0}
        self._ends: dict[Caller, int] = {}
        """A caller's last item ended there; a caller whose end is past may be missing."""
        self._sweep_at = SWEEP_BEYOND

    def start(self, caller: Caller) -> int:
        return max(self._now[caller[0]], self._ends.get(caller, 0))

    def begin(self, caller: Caller) -> None:
        """Call it when the caller has its turn."""
        self._now[caller[0]] = self.start(caller)

    def charge(self, caller: Caller, cost: int, weight: int) -> None:
        self._ends[caller] = self.start(caller) + max(1, cost * WEIGHT_UNIT // max(1, weight))
        if len(self._ends) > self._sweep_at:
            now, ends = self._now, self._ends.items()
            self._ends = {caller: end for caller, end in ends if end > now[caller[0]]}
            self._sweep_at = 2 * len(self._ends) + SWEEP_BEYOND


@dataclass(eq=False, slots=True)
class _Entry(Generic[Item]):
    item: Item
    caller: Caller
    order: int
    cost: int
    weight: int


class FairQueue(Generic[Item]):
    """A change costs O(accounts) when the next item is asked for, and nothing until then."""

    def __init__(self) -> None:
        self._entries: dict[Item, _Entry[Item]] = {}
        self._of_caller: dict[Caller, list[_Entry[Item]]] = {}
        self._clock = FairClock()
        self._first: _Entry[Item] | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._entries)

    def add(
        self,
        item: Item,
        *,
        account: str,
        order: int,
        cost: int,
        weight: int = 1,
        is_anonymous: bool = False,
    ) -> None:
        """``order`` is unique; it ranks the item among its account's."""
        entry = _Entry(item, (is_anonymous, account), order, cost, weight)
        self._entries[item] = entry
        insort(self._of_caller.setdefault(entry.caller, []), entry, key=attrgetter("order"))
        self._first = None

    def head(self) -> Item | None:
        return self._next().item if self._entries else None

    def take(self) -> Item:
        entry = self._next()
        self._clock.begin(entry.caller)
        self._clock.charge(entry.caller, entry.cost, entry.weight)
        self.remove(entry.item)
        return entry.item

    def remove(self, item: Item) -> None:
        """Does not charge its account."""
        entry = self._entries.pop(item)
        entries = self._of_caller[entry.caller]
        entries.remove(entry)
        if not entries:
            del self._of_caller[entry.caller]
        self._first = None
        if not self._entries:
            self._clock = FairClock()

    def check_integrity(self) -> None:
        """Raises ``IntegrityError``."""
        owned = [entry for entries in self._of_caller.values() for entry in entries]
        if {entry.item: entry for entry in owned} != self._entries or len(owned) != len(self):
            raise IntegrityError("an item belongs to no account, or to two")
        for entries in self._of_caller.values():
            orders = [entry.order for entry in entries]
            if orders != sorted(orders):
                raise IntegrityError("an account's items are not in order")

    def _next(self) -> _Entry[Item]:
        if self._first is None:
            start = self._clock.start
            firsts = (entries[0] for entries in self._of_caller.values())
            self._first = min(firsts, key=lambda one: (one.caller[0], start(one.caller), one.order))
        return self._first


STEP_S = 0.1
"""The intended time of a step: half of what a disconnect may take to free its blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    max_running: int = 256
    max_queue_depth: int = 256
    """The most that wait beyond the free slots."""
    max_queue_wait_s: float = 60.0
    max_queue_share_percent: int = 50
    prefill_tokens_per_step: int = 512
    target_step_s: float | None = None
    """The intended time of a step: see ``inference.engine.pace``."""

    @classmethod
    def of(cls, spec: LoadSpec, prefill_tokens_per_step: int) -> SchedulerLimits:
        return cls(
            max_running=spec.max_concurrent_sequences,
            max_queue_depth=spec.max_queue_depth,
            max_queue_wait_s=spec.max_queue_wait_s,
            max_queue_share_percent=spec.max_queue_share_percent,
            prefill_tokens_per_step=prefill_tokens_per_step,
            target_step_s=STEP_S,
        )

    @property
    def max_queue_depth_per_account(self) -> int:
        return -(-self.max_queue_depth * self.max_queue_share_percent // 100)


ANSWER_COST_TOKENS = 128
"""The assumed length of an answer, for its account's cost in fair queueing."""


class WaitingQueue:
    def __init__(self) -> None:
        self._preempted: list[Sequence] = []
        self._fair: FairQueue[Sequence] = FairQueue()
        self._held: dict[Sequence, None] = {}
        self._never_started: dict[Sequence, None] = {}

    def __len__(self) -> int:
        return len(self._never_started) + len(self._preempted)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._preempted
        yield from self._never_started

    def num_of(self, account: str) -> int:
        return sum(sequence.account == account for sequence in self._never_started)

    def add(self, sequence: Sequence) -> None:
        """Adds a new sequence, which has arrived after all others."""
        self._never_started[sequence] = None
        if sequence.is_held:
            self._held[sequence] = None
        else:
            self._line_up(sequence)

    def put_back(self, sequence: Sequence) -> None:
        insort(self._preempted, sequence, key=attrgetter("admission"))

    def release_held(self) -> None:
        for sequence in [s for s in self._held if not s.is_held]:
            del self._held[sequence]
            self._line_up(sequence)

    def next(self) -> Sequence | None:
        return self._preempted[0] if self._preempted else self._fair.head()

    def take(self) -> Sequence:
        if self._preempted:
            return self._preempted.pop(0)
        sequence = self._fair.take()
        del self._never_started[sequence]
        return sequence

    def remove(self, sequence: Sequence) -> None:
        if sequence not in self._never_started:
            self._preempted.remove(sequence)
            return
        del self._never_started[sequence]
        if sequence in self._held:
            del self._held[sequence]
        else:
            self._fair.remove(sequence)

    def overdue(self, now_s: float, num_promised: int) -> list[Sequence]:
        """Skips the first ``num_promised``: a running slot is free for each."""
        waiting = islice(self._never_started, max(0, num_promised - len(self._preempted)), None)
        return [one for one in waiting if one.deadline_s is not None and one.deadline_s <= now_s]

    def check_integrity(self) -> None:
        """Raises ``IntegrityError``."""
        admissions = [sequence.admission for sequence in self._preempted]
        if admissions != sorted(set(admissions)) or 0 in admissions:
            raise IntegrityError("preempted sequences are not in order of admission")
        arrivals = [sequence.arrival for sequence in self._never_started]
        if arrivals != sorted(set(arrivals)):
            raise IntegrityError("the queue is not in order of arrival")
        if any(sequence.admission for sequence in self._never_started):
            raise IntegrityError("a sequence that has started waits with those that have not")
        if {*self._fair, *self._held} != set(self._never_started):
            raise IntegrityError("a sequence waits for no turn")
        if any(sequence.block_ids for sequence in self):
            raise IntegrityError("a waiting sequence holds blocks")
        self._fair.check_integrity()

    def _line_up(self, sequence: Sequence) -> None:
        # A choice that shares its prompt's blocks computes hardly any of it.
        num_prompt_tokens = 0 if sequence.same_prompt_as else sequence.num_prompt_tokens
        self._fair.add(
            sequence,
            account=sequence.account,
            order=sequence.arrival,
            cost=num_prompt_tokens + ANSWER_COST_TOKENS,
            weight=sequence.weight,
            is_anonymous=sequence.is_anonymous,
        )
