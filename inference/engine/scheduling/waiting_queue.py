"""The sequences that wait to run, and who of them is next.

    preempted    those that have run before, in order of admission: always first
    fair         never started and ready to, in turns by account (``fair_queue``)
    held         cannot start yet (``Sequence.is_held``); joins the others of its account, at the
                 place of its arrival, once it can

For the engine's thread. Plain Python over ints; times are arguments.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterator
from itertools import islice

from inference.engine.errors import IntegrityError
from inference.engine.scheduling.fair_queue import FairQueue
from inference.engine.scheduling.sequence import Sequence

ANSWER_COST_TOKENS = 128
"""What an answer counts for in its account's turn, beside the prompt's tokens: how long it will be
nobody knows."""


class WaitingQueue:
    def __init__(self) -> None:
        self._preempted: list[Sequence] = []
        self._fair: FairQueue[Sequence] = FairQueue()
        self._held: dict[Sequence, None] = {}
        self._never_started: dict[Sequence, None] = {}
        """In order of arrival."""
        self._num_by_account: Counter[str] = Counter()
        """How many each account has that never started."""

    def __len__(self) -> int:
        return len(self._never_started) + len(self._preempted)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._preempted
        yield from self._never_started

    def num_of(self, account: str) -> int:
        """Sequences of an account that never started."""
        return self._num_by_account[account]

    def add(self, sequence: Sequence) -> None:
        """A new one; later ones have arrived later."""
        self._never_started[sequence] = None
        self._num_by_account[sequence.account] += 1
        if sequence.is_held:
            self._held[sequence] = None
        else:
            self._line_up(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """One that has run."""
        insort(self._preempted, sequence, key=_admission)

    def release_held(self) -> None:
        """Those that can start by now wait for their turn."""
        for sequence in [s for s in self._held if not s.is_held]:
            del self._held[sequence]
            self._line_up(sequence)

    def next(self) -> Sequence | None:
        """Whose turn it is; it stays."""
        return self._preempted[0] if self._preempted else self._fair.head()

    def take(self) -> Sequence:
        """Whose turn it is, at its account's cost. There is one."""
        if self._preempted:
            return self._preempted.pop(0)
        sequence = self._fair.take()
        self._forget(sequence)
        return sequence

    def remove(self, sequence: Sequence) -> None:
        """Removes a sequence that has ended; it must be here."""
        if sequence not in self._never_started:
            self._preempted.remove(sequence)
            return
        self._forget(sequence)
        if sequence in self._held:
            del self._held[sequence]
        else:
            self._fair.remove(sequence)

    def overdue(self, now_s: float, num_promised: int) -> list[Sequence]:
        """Those that have waited for longer than allowed, oldest first. The ``num_promised`` oldest
        are not in question."""
        oldest = next(iter(self._never_started), None)
        if oldest is None or not _is_due(oldest, now_s):
            return []
        num_promised -= len(self._preempted)
        late = []
        for sequence in islice(self._never_started, max(0, num_promised), None):
            if not _is_due(sequence, now_s):
                break
            late.append(sequence)
        return late

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
        if Counter(s.account for s in self._never_started) != self._num_by_account:
            raise IntegrityError("an account's sequences are not all counted")
        self._fair.check_integrity()

    def _line_up(self, sequence: Sequence) -> None:
        # A choice that shares its prompt's blocks computes next to nothing of it.
        num_prompt_tokens = 0 if sequence.same_prompt_as else sequence.num_prompt_tokens
        self._fair.add(
            sequence,
            account=sequence.account,
            order=sequence.arrival,
            cost=num_prompt_tokens + ANSWER_COST_TOKENS,
            weight=sequence.weight,
            is_anonymous=sequence.is_anonymous,
        )

    def _forget(self, sequence: Sequence) -> None:
        del self._never_started[sequence]
        self._num_by_account[sequence.account] -= 1
        if not self._num_by_account[sequence.account]:
            del self._num_by_account[sequence.account]


def _admission(sequence: Sequence) -> int:
    return sequence.admission


def _is_due(sequence: Sequence, now_s: float) -> bool:
    return sequence.deadline_s is not None and sequence.deadline_s <= now_s
