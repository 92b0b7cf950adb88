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
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from inference.neuron.errors import account_waits_too_much, intake_full, preparing_instance_died
from inference.neuron.requests.intake.lane import KIB, Lane, Waiting
from inference.neuron.requests.intake.preparing_marks import PreparingMarks
from inference.neuron.requests.intake.starter import Starter
from inference.protocol.events import Failure
from inference.protocol.generation import EmbeddingRequest, ScoreRequest, Submit
from inference.protocol.held import blame, broke_worker

log = logging.getLogger(__name__)

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
