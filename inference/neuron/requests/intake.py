"""The queue of requests to be rendered and tokenized: bounded, and round-robin by account.

    put ─▶ bounds ─▶ group: one account's on one model ─▶ FairQueue of groups ─▶ Starter.start

A group at one of the limits of running requests waits aside until a request ends. So a template
or schema that hangs, or a burst of long prompts, holds up only requests of its account and model.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from inference.engine.waiting_queue import FairQueue
from inference.neuron.errors import account_waits_too_much, intake_full, retryable
from inference.neuron.requests.starter import PreparingMarks, Starter
from inference.protocol.delivery import blame, broke_worker
from inference.protocol.events import Failure
from inference.protocol.generation import Submit
from inference.supervised_threads import SupervisedThread

log = logging.getLogger(__name__)

MAX_PREPARED = 12
"""Each has a thread of its own."""
MAX_OF_EITHER = 4
MAX_OF_BOTH = 2
STUCK_AFTER_S = 300.0
"""Ten times what the largest request takes to prepare."""
MAX_STUCK = 8
"""A neuron with more stuck requests accepts none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeLimits:
    """One account may have half of each."""

    max_requests: int = 2048
    max_bytes: int = 256 * 1024 * 1024


Group = tuple[str, str, bool]
"""Account, model, and whether its requests yield to all others."""


@dataclass(slots=True, eq=False)
class _Waiting:
    submit: Submit
    num_bytes: int
    order: int
    began_s: float = 0.0

    @property
    def group(self) -> Group:
        submit = self.submit
        return submit.account, submit.model, submit.is_anonymous or submit.yields


class Intake:
    """``put`` is for one thread."""

    def __init__(
        self,
        starter: Starter,
        marks: PreparingMarks,
        limits: IntakeLimits | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._starter = starter
        self._marks = marks
        self._clock = clock
        self._limits = limits or IntakeLimits()
        self._changed = threading.Condition()
        self._groups: dict[Group, deque[_Waiting]] = {}
        self._queue: FairQueue[Group] = FairQueue()
        """The groups that are not aside, each with its oldest request."""
        self._aside: list[Group] = []
        self._running: list[_Waiting] = []
        self._num_put = 0
        self._requests_of: Counter[str] = Counter()
        """By account, those in preparation included."""
        self._bytes_of: Counter[str] = Counter()
        self._is_stopping = False

    def start(self) -> None:
        for index in range(MAX_PREPARED):
            SupervisedThread(self._work, name=f"intake-{index}").start()

    def stop(self) -> None:
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()

    @property
    def pending(self) -> tuple[int, int]:
        """Requests not prepared yet, and the bytes of their frames."""
        with self._changed:
            return self._requests_of.total(), self._bytes_of.total()

    def put(self, submit: Submit, num_bytes: int) -> None:
        if not self._starter.admit(submit):
            log.warning("request %s was delivered twice", submit.request_id)
            return
        refusal = self._failure_of_earlier_instance(submit)
        with self._changed:
            refusal = refusal or self._over_bounds(submit.account, num_bytes)
            if refusal is None:
                self._add(submit, num_bytes)
        if refusal is not None:
            self._starter.refuse(submit, refusal)

    def stuck(self) -> list[str]:
        with self._changed:
            now_s = self._clock()
            return sorted(_in_words(one, now_s) for one in self._stuck(now_s))

    @property
    def is_ready(self) -> bool:
        with self._changed:
            return len(self._stuck(self._clock())) <= MAX_STUCK

    def _work(self) -> None:
        while (waiting := self._next()) is not None:
            request_id = waiting.submit.request_id
            self._marks.begin(request_id)
            try:
                self._starter.start(waiting.submit)
            finally:
                self._marks.end(request_id)
                self._done(waiting)

    def _next(self) -> _Waiting | None:
        with self._changed:
            while (waiting := self._take()) is None:
                if self._is_stopping and not self._groups:
                    self._changed.notify_all()
                    return None
                self._changed.wait()
            waiting.began_s = self._clock()
            self._running.append(waiting)
            return waiting

    # Callers hold the lock, except those of ``_done`` and ``_failure_of_earlier_instance``.

    def _add(self, submit: Submit, num_bytes: int) -> None:
        self._num_put += 1
        waiting = _Waiting(submit, num_bytes, self._num_put)
        self._requests_of[submit.account] += 1
        self._bytes_of[submit.account] += num_bytes
        group = self._groups.setdefault(waiting.group, deque())
        group.append(waiting)
        if len(group) == 1:
            self._enqueue(waiting.group)
        self._changed.notify()

    def _enqueue(self, group: Group) -> None:
        oldest = self._groups[group][0]
        self._queue.add(
            group,
            account=group[0],
            order=oldest.order,
            cost=oldest.num_bytes,
            weight=oldest.submit.weight,
            is_anonymous=group[2],
        )

    def _take(self) -> _Waiting | None:
        while (group := self._queue.head()) is not None:
            if self._is_full(group):
                self._queue.remove(group)
                self._aside.append(group)
                continue
            self._queue.take()
            waiting = self._groups[group].popleft()
            if self._groups[group]:
                self._enqueue(group)
            else:
                del self._groups[group]
            return waiting
        return None

    def _is_full(self, group: Group) -> bool:
        account, model, _ = group
        of_account = [one.submit.account == account for one in self._running]
        of_model = [one.submit.model == model for one in self._running]
        of_both = sum(map(all, zip(of_account, of_model, strict=True)))
        return max(sum(of_account), sum(of_model)) >= MAX_OF_EITHER or of_both >= MAX_OF_BOTH

    def _done(self, waiting: _Waiting) -> None:
        account = waiting.submit.account
        with self._changed:
            self._running.remove(waiting)
            self._requests_of[account] -= 1
            self._bytes_of[account] -= waiting.num_bytes
            if not self._requests_of[account]:
                del self._requests_of[account], self._bytes_of[account]
            for group in self._aside:
                self._enqueue(group)
            self._aside.clear()
            self._changed.notify()

    def _over_bounds(self, account: str, num_bytes: int) -> Failure | None:
        """A request alone is never too large: the gateway has bounded it."""
        limits, requests_of, bytes_of = self._limits, self._requests_of, self._bytes_of
        of_all = requests_of.total(), bytes_of.total(), 1, intake_full
        of_one = requests_of[account], bytes_of[account], 2, account_waits_too_much
        for num_requests, held_bytes, share, refuse in (of_all, of_one):
            max_requests, max_bytes = limits.max_requests // share, limits.max_bytes // share
            if num_requests >= max_requests:
                return refuse(f"{num_requests} requests", f"{max_requests} requests")
            if num_requests and held_bytes + num_bytes > max_bytes:
                return refuse(f"{held_bytes} bytes", f"{max_bytes} bytes")
        return None

    def _failure_of_earlier_instance(self, submit: Submit) -> Failure | None:
        """The gateway decides whether it delivers the request again."""
        marks = self._marks.earlier
        if submit.request_id not in marks:
            return None
        found = blame(marks, [submit.request_id], submit.num_worker_deaths)
        if found.may_deliver_again:
            message = "the neuron ended while it prepared this request beside others"
            return retryable("neuron_lost", message)
        log.error(
            "request %s (account %s, key %s) for %s ended the previous instance of this neuron; "
            "it is not run again",
            *(submit.request_id, submit.account, submit.key or "-", submit.model),
        )
        return broke_worker("the neuron")

    def _stuck(self, now_s: float) -> list[_Waiting]:
        return [one for one in self._running if now_s - one.began_s > STUCK_AFTER_S]


def _in_words(waiting: _Waiting, now_s: float) -> str:
    submit = waiting.submit
    return (
        f"request {submit.request_id} (account {submit.account}, key {submit.key or '-'}) for "
        f"{submit.model} has been prepared for {now_s - waiting.began_s:.0f} s"
    )
