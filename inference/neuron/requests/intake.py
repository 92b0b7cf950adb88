"""The queue of requests to be rendered and tokenized: bounded, in lanes by size, round-robin by
account.

    put ─▶ bounds ─┬─▶ up to 16 KiB ─▶ 2 threads ─┐
                   ├─▶ up to 128 KiB              │
                   ├─▶ up to 1 MiB                ├─▶ Starter.start
                   ├─▶ longer        ─▶ 1 thread  │
                   └─▶ embeddings    ─▶ 1 thread ─┘

A request's cost here grows with its size, so each waits only for requests of about the same cost: a
long one never delays a short one. The threads share the interpreter; the long work, tokenizing,
runs outside it. A thread that waits long for a worker (``inference.sandbox``) is parked and another
takes its place, so that a template or schema that hangs holds up requests of its own model and
account alone.

Putting returns at once, so a long prompt delays neither cancels nor heartbeats. Tokens of other
requests go up on their replicas' own threads. A thread that hangs in a request is replaced by
another one, and the heartbeat reports it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from inference.engine.scheduling.fair_queue import FairQueue
from inference.neuron.errors import account_waits_too_much, intake_full, preparing_instance_died
from inference.neuron.requests.preparing_marks import PreparingMarks
from inference.neuron.requests.starter import Starter
from inference.protocol.events import Failure
from inference.protocol.generation import EmbeddingRequest, ScoreRequest, Submit
from inference.protocol.held import blame, broke_worker
from inference.supervised_threads import SupervisedThread

log = logging.getLogger(__name__)

KIB = 1024
MAX_PARKED = 16
"""Threads of a lane that may be parked at once."""
MAX_PARKED_OF_EITHER = 4
"""The most requests parked for one account, or for one model; its others are held meanwhile."""
MAX_PARKED_OF_BOTH = 2
"""The most requests parked for one account on one model."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A request on its way through its lane."""

    submit: Submit
    num_bytes: int
    lane: Lane
    order: int
    began_s: float = 0.0
    """When a thread began to prepare it."""
    is_relieved: bool = False
    """Another thread does what its own would do."""


class Lane:
    """A queue of requests and the threads that prepare them. As many threads work at once as the
    lane has, not counting those that are parked."""

    def __init__(
        self, run: Callable[[Waiting], None], max_bytes: int | None, num_threads: int
    ) -> None:
        """``run`` prepares a request, in a thread."""
        self._prepare = run
        self._max_bytes = max_bytes
        self._num_threads = num_threads
        self._changed = threading.Condition()
        self._queue: FairQueue[Waiting] = FairQueue()
        self._held: list[Waiting] = []
        self._parked: list[Waiting] = []
        self._num_working = 0
        self._num_relieved = 0
        self._is_stopping = False
        self._name = "intake" if max_bytes is None else f"intake-{max_bytes // KIB}k"
        self._num_started = 0
        self._num_alive = 0

    def start(self) -> None:
        for _ in range(self._num_threads):
            self._start_thread()

    def stop(self) -> None:
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()

    def takes(self, num_bytes: int) -> bool:
        return self._max_bytes is None or num_bytes <= self._max_bytes

    def put(self, waiting: Waiting) -> None:
        with self._changed:
            self._add(waiting)
            self._changed.notify_all()

    def relieve(self, waiting: Waiting) -> bool:
        """Starts another thread in the place of the one that is stuck with it. ``False``: it holds
        no place."""
        with self._changed:
            if waiting.is_relieved or waiting in self._parked:
                return False
            waiting.is_relieved = True
            self._num_relieved += 1
            self._num_working -= 1
            self._start_thread()
            return True

    @contextmanager
    def parked(self, waiting: Waiting) -> Iterator[None]:
        """Parks the thread that prepares it while it waits for something that others do not wait
        for."""
        is_parked = self._park(waiting)
        try:
            yield
        finally:
            if is_parked:
                self._unpark(waiting)

    def _add(self, waiting: Waiting) -> None:
        submit = waiting.submit
        self._queue.add(
            waiting,
            account=submit.account,
            order=waiting.order,
            cost=waiting.num_bytes,
            weight=submit.weight,
            is_anonymous=submit.is_anonymous or submit.yields,
        )

    def _start_thread(self) -> None:
        name = f"{self._name}-{self._num_started}"
        self._num_started += 1
        self._num_alive += 1
        SupervisedThread(self._run, name=name).start()

    def _run(self) -> None:
        while (waiting := self._next()) is not None:
            try:
                self._prepare(waiting)
            finally:
                self._done(waiting)
            if waiting.is_relieved:
                return

    def _next(self) -> Waiting | None:
        with self._changed:
            while True:
                if self._num_working < self._num_threads and (waiting := self._take()) is not None:
                    self._num_working += 1
                    return waiting
                if self._is_stopping and not self._queue and not self._held:
                    return None
                self._changed.wait()

    def _done(self, waiting: Waiting) -> None:
        with self._changed:
            if waiting.is_relieved:
                self._num_relieved -= 1
                self._num_alive -= 1
            else:
                self._num_working -= 1
            self._changed.notify_all()

    def _take(self) -> Waiting | None:
        while (waiting := self._queue.head()) is not None:
            if not self._is_held_up(waiting.submit):
                return self._queue.take()
            self._queue.remove(waiting)
            self._held.append(waiting)
        return None

    def _is_held_up(self, submit: Submit) -> bool:
        """Whether enough of its account's or its model's requests are parked."""
        parked = [waiting.submit for waiting in self._parked]
        of_account = [one.account == submit.account for one in parked]
        of_model = [one.model == submit.model for one in parked]
        of_both = sum(map(all, zip(of_account, of_model, strict=True)))
        return (
            max(sum(of_account), sum(of_model)) >= MAX_PARKED_OF_EITHER
            or of_both >= MAX_PARKED_OF_BOTH
        )

    def _park(self, waiting: Waiting) -> bool:
        """``False``: too many are, and it keeps its place."""
        with self._changed:
            if waiting.is_relieved or len(self._parked) >= MAX_PARKED:
                return False
            self._parked.append(waiting)
            self._num_working -= 1
            num_needed = self._num_threads + len(self._parked) + self._num_relieved
            if self._num_alive < num_needed:
                self._start_thread()
            self._changed.notify_all()
            return True

    def _unpark(self, waiting: Waiting) -> None:
        """Waits for a place."""
        with self._changed:
            self._parked.remove(waiting)
            for held in self._held:
                self._add(held)
            self._held.clear()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._num_working < self._num_threads)
            self._num_working += 1


LANES = ((16 * KIB, 2), (128 * KIB, 2), (1024 * KIB, 2), (None, 1))
"""Largest size in bytes and number of threads. A tokenizer takes about a second for a megabyte, so
the first lane's requests take a sixtieth of a second at most."""
STUCK_AFTER_S = 300.0
"""Ten times what the largest request takes to prepare."""
MAX_RELIEVED = 8
"""Threads that are stuck at once; a neuron with more takes no requests."""


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
        """How much there is and may be, where ``num_bytes`` more would be too much."""
        if self.num_requests >= max_requests:
            return f"{self.num_requests} requests", f"{max_requests} requests"
        if self.num_requests and self.num_bytes + num_bytes > max_bytes:
            return f"{self.num_bytes} bytes", f"{max_bytes} bytes"
        return None


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
        self._running: set[Waiting] = set()
        self._limits = limits or IntakeLimits()
        self._lock = threading.Lock()
        self._num_put = 0
        self._load = _Load()
        self._load_of: dict[str, _Load] = {}
        self._lanes = [Lane(self.run, size, num_threads) for size, num_threads in LANES]
        self._embeddings = Lane(self.run, None, 1)
        """Thousands of texts take a second to tokenize, which chats need not wait for."""

    def start(self) -> None:
        for lane in (*self._lanes, self._embeddings):
            lane.start()

    def stop(self) -> None:
        """End the threads once the queue is empty. Returns at once."""
        for lane in (*self._lanes, self._embeddings):
            lane.stop()

    @property
    def pending(self) -> tuple[int, int]:
        """How many requests are put and not prepared yet, and the bytes of their frames."""
        with self._lock:
            return self._load.num_requests, self._load.num_bytes

    def put(self, submit: Submit, num_bytes: int) -> None:
        """``num_bytes`` is the size of its frame. A request over the bounds ends here."""
        if not self._starter.admit(submit):
            log.warning("request %s was delivered twice", submit.request_id)
            return
        if (failure := self._failure_of_earlier_instance(submit)) is not None:
            self._starter.refuse(submit, failure)
            return
        with self._lock:
            theirs = self._load_of.get(submit.account) or _Load()
            refusal = self._refusal(theirs, num_bytes)
            if refusal is None:
                self._load_of[submit.account] = theirs
                for load in (self._load, theirs):
                    load.add(1, num_bytes)
        if refusal is not None:
            self._starter.refuse(submit, refusal)
            return
        self._num_put += 1
        lane = self._lane(submit, num_bytes)
        lane.put(Waiting(submit, num_bytes, lane, self._num_put))

    def run(self, waiting: Waiting) -> None:
        """Prepares a request, on a lane's thread."""
        request_id = waiting.submit.request_id
        waiting.began_s = self._clock()
        with self._lock:
            self._running.add(waiting)
        self._marks.begin(request_id)
        try:
            self._starter.start(waiting.submit, partial(waiting.lane.parked, waiting))
        finally:
            self._marks.end(request_id)
            account = waiting.submit.account
            with self._lock:
                self._running.discard(waiting)
                theirs = self._load_of[account]
                for load in (self._load, theirs):
                    load.add(-1, -waiting.num_bytes)
                if not theirs.num_requests:
                    del self._load_of[account]

    def relieve_stuck(self) -> list[str]:
        """Starts threads in the place of stuck ones; called once per heartbeat. Returns which
        requests hold a thread, in words."""
        now_s = self._clock()
        with self._lock:
            stuck = [one for one in self._running if now_s - one.began_s > STUCK_AFTER_S]
            num_relieved = sum(one.is_relieved for one in stuck)
        for waiting in stuck:
            if num_relieved < MAX_RELIEVED and waiting.lane.relieve(waiting):
                num_relieved += 1
                log.critical("%s; another thread was started", _stuck_in_words(waiting, now_s))
        return sorted(_stuck_in_words(waiting, now_s) for waiting in stuck)

    @property
    def is_ready(self) -> bool:
        """Whether each lane has its threads."""
        now_s = self._clock()
        with self._lock:
            return all(
                one.is_relieved or now_s - one.began_s <= STUCK_AFTER_S for one in self._running
            )

    def _lane(self, submit: Submit, num_bytes: int) -> Lane:
        if isinstance(submit.request, EmbeddingRequest | ScoreRequest):
            return self._embeddings
        return next(lane for lane in self._lanes if lane.takes(num_bytes))

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


def _stuck_in_words(waiting: Waiting, now_s: float) -> str:
    submit = waiting.submit
    return (
        f"request {submit.request_id} (account {submit.account}, key {submit.key or '-'}) for "
        f"{submit.model} has been prepared for {now_s - waiting.began_s:.0f} s"
    )
