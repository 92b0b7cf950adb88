"""The queue of requests to be rendered and tokenized: bounded, in lanes by size, round-robin by
account.

    put ─▶ bounds ─┬─▶ up to 16 KiB  2 at a time ─┐
                   ├─▶ up to 128 KiB 2            │
                   ├─▶ up to 1 MiB   2            ├─▶ Starter.start
                   ├─▶ longer        1            │
                   └─▶ embeddings    1           ─┘

A request's cost here grows with its size, so each waits only for requests of about the same cost: a
long one never delays a short one. One that takes longer than its size explains waits for a worker
(``inference.sandbox``), and its place goes to the next request of its lane. Its account and its
model may have a few such requests; their others are held meanwhile. So a template or schema that
hangs holds up requests of its own model and account alone.

Putting returns at once, so a long prompt delays neither cancels nor heartbeats.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from inference.engine.scheduling.waiting_queue import FairQueue
from inference.neuron.errors import account_waits_too_much, intake_full, preparing_instance_died
from inference.neuron.requests.starter import PreparingMarks, Starter
from inference.protocol.events import Failure
from inference.protocol.generation import EmbeddingRequest, ScoreRequest, Submit
from inference.protocol.held import blame, broke_worker
from inference.supervised_threads import SupervisedThread

log = logging.getLogger(__name__)

KIB = 1024
LANES = ((16 * KIB, 2), (128 * KIB, 2), (1024 * KIB, 2), (None, 1))
"""Largest size in bytes, and how many are prepared at a time. A tokenizer takes about a second for
a megabyte, so the first lane's requests take a sixtieth of a second at most."""
MAX_SLOW = 16
"""Slow requests beyond these keep their places."""
MAX_SLOW_OF_EITHER = 4
"""The most slow requests of one account, or of one model; its others are held meanwhile."""
MAX_SLOW_OF_BOTH = 2
SLOW_AFTER_S = 0.05
SLOW_AFTER_S_PER_KIB = 0.002
POLL_S = 0.05
"""How often one thread checks, while requests wait, whether another has become slow."""
STUCK_AFTER_S = 300.0
"""Ten times what the largest request takes to prepare."""
MAX_STUCK = 8
"""A neuron with more requests that are stuck takes none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeLimits:
    """Limits of waiting requests, and of requests in preparation. One account may have half of
    each."""

    max_requests: int = 2048
    max_bytes: int = 256 * KIB * KIB


@dataclass(slots=True)
class _Load:
    num_requests: int = 0
    num_bytes: int = 0

    def add(self, num_requests: int, num_bytes: int) -> None:
        self.num_requests += num_requests
        self.num_bytes += num_bytes

    def problem(self, num_bytes: int, max_requests: int, max_bytes: int) -> tuple[str, str] | None:
        """The present load and its limit, in words, if ``num_bytes`` more would exceed it."""
        if self.num_requests >= max_requests:
            return f"{self.num_requests} requests", f"{max_requests} requests"
        if self.num_requests and self.num_bytes + num_bytes > max_bytes:
            return f"{self.num_bytes} bytes", f"{max_bytes} bytes"
        return None


@dataclass(slots=True, eq=False)
class _Lane:
    max_bytes: int | None
    num_places: int
    queue: FairQueue[_Waiting] = field(default_factory=FairQueue)


@dataclass(slots=True, eq=False)
class _Waiting:
    submit: Submit
    num_bytes: int
    lane: _Lane
    order: int
    began_s: float = 0.0
    is_stuck: bool = False

    def is_slow(self, now_s: float) -> bool:
        slow_after_s = SLOW_AFTER_S + SLOW_AFTER_S_PER_KIB * self.num_bytes / KIB
        return now_s - self.began_s >= slow_after_s


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
        self._lanes = [_Lane(size, num_places) for size, num_places in LANES]
        self._embeddings = _Lane(None, 1)
        """Thousands of texts take a second to tokenize, which chats need not wait for."""
        self._running: list[_Waiting] = []
        self._held: list[_Waiting] = []
        self._num_put = 0
        self._load = _Load()
        self._load_of: dict[str, _Load] = {}
        self._is_watched = False
        self._is_stopping = False

    def start(self) -> None:
        # A slow request gives up its place and keeps its thread.
        num_threads = MAX_SLOW + sum(lane.num_places for lane in self._all_lanes())
        for index in range(num_threads):
            SupervisedThread(self._work, name=f"intake-{index}").start()

    def stop(self) -> None:
        """End the threads once the queue is empty. Returns at once."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()

    @property
    def pending(self) -> tuple[int, int]:
        """How many requests are put and not prepared yet, and the bytes of their frames."""
        with self._changed:
            return self._load.num_requests, self._load.num_bytes

    def put(self, submit: Submit, num_bytes: int) -> None:
        """``num_bytes`` is the size of its frame. A request over the bounds ends here."""
        if not self._starter.admit(submit):
            log.warning("request %s was delivered twice", submit.request_id)
            return
        if (failure := self._failure_of_earlier_instance(submit)) is not None:
            self._starter.refuse(submit, failure)
            return
        with self._changed:
            theirs = self._load_of.get(submit.account) or _Load()
            refusal = self._refusal(theirs, num_bytes)
            if refusal is None:
                self._load_of[submit.account] = theirs
                for load in (self._load, theirs):
                    load.add(1, num_bytes)
                self._num_put += 1
                lane = self._lane(submit, num_bytes)
                self._add(_Waiting(submit, num_bytes, lane, self._num_put))
                self._changed.notify()
        if refusal is not None:
            self._starter.refuse(submit, refusal)

    def stuck(self) -> list[str]:
        """Describes the requests that hold a thread for too long; called once per heartbeat."""
        with self._changed:
            now_s = self._clock()
            stuck = [one for one in self._running if now_s - one.began_s > STUCK_AFTER_S]
            new = [one for one in stuck if not one.is_stuck]
            for one in new:
                one.is_stuck = True
            if new:
                self._release_held()
        for one in new:
            log.critical("%s", _stuck_in_words(one, now_s))
        return sorted(_stuck_in_words(one, now_s) for one in stuck)

    @property
    def is_ready(self) -> bool:
        with self._changed:
            return sum(one.is_stuck for one in self._running) <= MAX_STUCK

    # The threads.

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
        """``None``: it is stopping, and nothing waits any more."""
        with self._changed:
            while True:
                now_s = self._clock()
                if (waiting := self._take(now_s)) is not None:
                    waiting.began_s = now_s
                    self._running.append(waiting)
                    if not self._is_empty():
                        self._changed.notify()  # another checks for more
                    return waiting
                is_empty = self._is_empty()
                if self._is_stopping and is_empty:
                    self._changed.notify_all()
                    return None
                self._wait(is_empty)

    # Holds the lock already.

    def _all_lanes(self) -> list[_Lane]:
        return [*self._lanes, self._embeddings]

    def _is_empty(self) -> bool:
        return not (self._held or any(lane.queue for lane in self._all_lanes()))

    def _lane(self, submit: Submit, num_bytes: int) -> _Lane:
        if isinstance(submit.request, EmbeddingRequest | ScoreRequest):
            return self._embeddings
        return next(
            lane for lane in self._lanes if lane.max_bytes is None or num_bytes <= lane.max_bytes
        )

    def _add(self, waiting: _Waiting) -> None:
        submit = waiting.submit
        waiting.lane.queue.add(
            waiting,
            account=submit.account,
            order=waiting.order,
            cost=waiting.num_bytes,
            weight=submit.weight,
            is_anonymous=submit.is_anonymous or submit.yields,
        )

    def _release_held(self) -> None:
        for waiting in self._held:
            self._add(waiting)
        self._held.clear()
        self._changed.notify()

    def _wait(self, is_empty: bool) -> None:
        """While requests wait, one thread polls: running ones become slow."""
        is_watching = not (is_empty or self._is_watched)
        self._is_watched = self._is_watched or is_watching
        self._changed.wait(POLL_S if is_watching else None)
        if is_watching:
            self._is_watched = False

    def _take(self, now_s: float) -> _Waiting | None:
        slow = [one for one in self._running if one.is_slow(now_s)][:MAX_SLOW]
        for lane in self._all_lanes():
            if not lane.queue:
                continue
            num_working = sum(one.lane is lane and one not in slow for one in self._running)
            while num_working < lane.num_places and (waiting := lane.queue.head()) is not None:
                if not _is_held_up(waiting.submit, slow):
                    return lane.queue.take()
                lane.queue.remove(waiting)
                self._held.append(waiting)
        return None

    def _done(self, waiting: _Waiting) -> None:
        account = waiting.submit.account
        with self._changed:
            self._running.remove(waiting)
            if self._held:
                self._release_held()
            theirs = self._load_of[account]
            for load in (self._load, theirs):
                load.add(-1, -waiting.num_bytes)
            if not theirs.num_requests:
                del self._load_of[account]

    def _failure_of_earlier_instance(self, submit: Submit) -> Failure | None:
        """Why a request that an instance which died was preparing does not run here: its gateway
        decides whether it is delivered again."""
        marks = self._marks.earlier
        if submit.request_id not in marks:
            return None
        found = blame(marks, [submit.request_id], submit.num_worker_deaths)
        if found.may_deliver_again:
            return preparing_instance_died()
        log.error(
            "request %s (account %s, key %s) for %s ended the previous instance of this neuron; "
            "it is not run again",
            *(submit.request_id, submit.account, submit.key or "-", submit.model),
        )
        return broke_worker("the neuron")

    def _refusal(self, theirs: _Load, num_bytes: int) -> Failure | None:
        """A request alone is never too large: the gateway has bounded it."""
        limits, load = self._limits, self._load
        if problem := load.problem(num_bytes, limits.max_requests, limits.max_bytes):
            return intake_full(*problem)
        if problem := theirs.problem(num_bytes, limits.max_requests // 2, limits.max_bytes // 2):
            return account_waits_too_much(*problem)
        return None


def _is_held_up(submit: Submit, slow: Sequence[_Waiting]) -> bool:
    of_account = [one.submit.account == submit.account for one in slow if not one.is_stuck]
    of_model = [one.submit.model == submit.model for one in slow if not one.is_stuck]
    of_both = sum(map(all, zip(of_account, of_model, strict=True)))
    return max(sum(of_account), sum(of_model)) >= MAX_SLOW_OF_EITHER or of_both >= MAX_SLOW_OF_BOTH


def _stuck_in_words(waiting: _Waiting, now_s: float) -> str:
    submit = waiting.submit
    return (
        f"request {submit.request_id} (account {submit.account}, key {submit.key or '-'}) for "
        f"{submit.model} has been prepared for {now_s - waiting.began_s:.0f} s"
    )
