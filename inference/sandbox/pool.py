"""A pool of sandbox workers, with limits by account and by model.

    run ─▶ wait for a worker ─▶ send the job ─▶ wait for its result ─▶ the worker is idle again
             at most 2 for one         │ time over, not wanted, dead
             account on one model,     ▼
             4 for either, 8 in all   it is killed; the next job forks another

So one hanging request blocks no other. Eight that hang at once make others wait until the first
one's time is over. Any thread may call.

A ``Caller`` is the account and the model that a job is done for.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from signal import SIGPROF

from inference.channel import Channel, ChannelError
from inference.sandbox.errors import LossReason, NotWantedError, NoWorkerError, WorkerLostError
from inference.sandbox.fork_client import ForkClient, end_process
from inference.sandbox.jobs import (
    LAST,
    MIB,
    Broken,
    Job,
    Result,
    TokenizerFacts,
    decode_result,
    encode_frame,
)
from inference.supervised_threads import SupervisedThread

CLOCK_S = 30.0
"""How long a worker may take by the clock, which runs on while others have the processors."""
CLOCK_S_PER_MIB = 3.0
SLICE_S = 0.05
"""How often a caller that waits looks whether it is still wanted."""


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    account: str = ""
    model: str = ""
    is_wanted: Callable[[], bool] = _always
    """Whether anybody still waits for the result. Called a few times a second."""

    def check(self) -> None:
        """Raises ``NotWantedError``."""
        if not self.is_wanted():
            raise NotWantedError


log = logging.getLogger(__name__)

MAX_WORKERS = 8
MAX_OF_EITHER = 4
"""The most workers for one model, or for one account."""
MAX_OF_BOTH = 2
"""The most workers for one account on one model."""
NUM_KEPT = 2
"""The number of idle workers that stay; the others end."""
WAIT_LIMIT_S = 60.0
"""How long a job waits for a worker."""


@dataclass(slots=True, eq=False)
class _Worker:
    pid: int
    connection: socket.socket
    channel: Channel
    generation: int
    is_last: bool = False
    """It ends, and takes no further job."""


class WorkerPool:
    """Starts nothing before the first job, or ``start``."""

    def __init__(self) -> None:
        self._forks = ForkClient()
        self._changed = threading.Condition()
        self._idle: list[_Worker] = []
        self._busy: Counter[tuple[str, str]] = Counter()
        """Workers by account and model."""
        self._uses: Counter[str] = Counter()
        """The uses of each tokenizer, by digest."""
        self._released: deque[str] = deque()
        self._generation = 0
        """Workers of an earlier one lack a tokenizer that was read since."""
        self._is_closed = False

    def start(self) -> None:
        """Forks the first workers, in a thread of its own."""
        SupervisedThread(self._warm_up, name="sandbox-start", restarts=False).start()

    def close(self) -> None:
        """Ends all workers; jobs that run fail. Returns when they are gone."""
        with self._changed:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for worker in idle:
            self._end(worker)
        self._forks.close()

    def keep_tokenizer(self, facts: TokenizerFacts) -> None:
        """Each call needs a ``release_tokenizer``."""
        self._forget_released()
        with self._changed:
            self._uses[facts.digest] += 1
            if self._uses[facts.digest] > 1:
                return
        self._forks.keep_tokenizer(facts)
        with self._changed:
            self._generation += 1
            outdated, self._idle = self._idle, []
        for worker in outdated:
            self._end(worker)

    def release_tokenizer(self, digest: str) -> None:
        """Takes effect when the next worker is forked. Locks nothing: a finalizer may call it."""
        self._released.append(digest)

    def run(self, job: Job, caller: Caller) -> Result:
        """Blocks. Raises ``SandboxError``."""
        frame = encode_frame(job)
        worker = self._claim(caller)
        is_whole = False
        try:
            result = self._ask(worker, frame, caller)
            is_whole = True
        finally:
            self._release(caller, worker, is_whole=is_whole)
        if isinstance(result, Broken):
            if result.where:
                log.error("a worker's job broke: %s", result.where)
            raise WorkerLostError(LossReason(result.reason), tuple(result.steps))
        return result

    def _claim(self, caller: Caller) -> _Worker:
        started_s = time.monotonic()
        with self._changed:
            while not self._may_have_one(caller):
                if time.monotonic() - started_s > WAIT_LIMIT_S:
                    raise NoWorkerError("all were busy for too long")
                self._changed.wait(SLICE_S)
                caller.check()
            self._busy[caller.account, caller.model] += 1
        try:
            return self._idle_one() or self._forked()
        except BaseException:
            self._count_down(caller)
            raise

    def _may_have_one(self, caller: Caller) -> bool:
        of_account = of_model = 0
        for (account, model), count in self._busy.items():
            of_account += count * (account == caller.account)
            of_model += count * (model == caller.model)
        return (
            self._busy.total() < MAX_WORKERS
            and max(of_account, of_model) < MAX_OF_EITHER
            and self._busy[caller.account, caller.model] < MAX_OF_BOTH
        )

    def _idle_one(self) -> _Worker | None:
        while True:
            with self._changed:
                if not self._idle:
                    return None
                worker = self._idle.pop()
            if not _is_readable(worker, 0.0):  # nothing is due: it has ended
                return worker
            self._end(worker)

    def _forked(self) -> _Worker:
        self._forget_released()
        with self._changed:
            if self._is_closed:
                raise NoWorkerError("they have ended")
            generation = self._generation
        pid, connection = self._forks.fork()
        return _Worker(pid, connection, Channel(connection), generation)

    def _ask(self, worker: _Worker, frame: bytes, caller: Caller) -> Result:
        limit_s = CLOCK_S + CLOCK_S_PER_MIB * len(frame) / MIB
        worker.connection.settimeout(limit_s)
        started_s = time.monotonic()
        try:
            worker.channel.send(frame)
            while not _is_readable(worker, SLICE_S):
                caller.check()
                if time.monotonic() - started_s > limit_s:
                    raise WorkerLostError(LossReason.TIME)
            frame = worker.channel.receive()
            worker.is_last = frame[:1] == LAST
            return decode_result(frame[1:])
        except ChannelError:
            raise WorkerLostError(self._why_lost(worker)) from None

    def _forget_released(self) -> None:
        while self._released:
            digest = self._released.popleft()
            with self._changed:
                self._uses[digest] -= 1
                is_used = self._uses[digest] > 0
            if not is_used:
                self._forks.forget_tokenizer(digest)

    def _why_lost(self, worker: _Worker) -> LossReason:
        end_process(worker.pid)
        is_over_time = self._forks.reap(worker.pid) == SIGPROF
        worker.pid = 0
        return LossReason.TIME if is_over_time else LossReason.CRASH

    def _release(self, caller: Caller, worker: _Worker, *, is_whole: bool) -> None:
        with self._changed:
            is_kept = (
                is_whole
                and not worker.is_last
                and not self._is_closed
                and worker.generation == self._generation
                and len(self._idle) < NUM_KEPT
            )
            if is_kept:
                self._idle.append(worker)
        if not is_kept:
            self._end(worker)
        self._count_down(caller)

    def _count_down(self, caller: Caller) -> None:
        with self._changed:
            self._busy[caller.account, caller.model] -= 1
            self._busy += Counter()  # forgets those that have none
            self._changed.notify_all()

    def _end(self, worker: _Worker) -> None:
        worker.connection.close()
        if worker.pid:
            end_process(worker.pid)
            self._forks.reap(worker.pid)

    def _warm_up(self) -> None:
        for _ in range(NUM_KEPT):
            try:
                worker = self._forked()
            except NoWorkerError:
                return
            with self._changed:
                is_kept = not self._is_closed and worker.generation == self._generation
                if is_kept:
                    self._idle.append(worker)
            if not is_kept:
                self._end(worker)


def _is_readable(worker: _Worker, timeout_s: float) -> bool:
    readable = select.poll()
    readable.register(worker.connection, select.POLLIN)
    return bool(readable.poll(timeout_s * 1000))
