"""One lane of the intake: requests that cost about the same, round-robin by account, and the
threads that prepare them.

    queue ─▶ working ⇄ parked: waits long for a worker, and has lent its place to another thread
      ▲▼
     held: its account or model has enough parked; back in the queue when one of these resumes
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from inference.engine.scheduling.fair_queue import FairQueue
from inference.protocol.generation import Submit
from inference.supervised_threads import SupervisedThread

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
