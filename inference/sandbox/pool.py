"""A pool of sandbox workers: idle ones are kept, and a fork server makes more when none is idle.

    run ─▶ an idle worker, or a new one ─▶ send the job ─▶ wait for its result ─▶ idle again
                                             │ time over, not wanted, dead
                                             ▼
                                             it is killed; the next job forks another

The neuron's intake bounds how many run at once, for each account and model. Any thread may call.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from weakref import WeakValueDictionary

from inference.channel import Channel, ChannelError
from inference.environment import Role, child_environment
from inference.sandbox import jobs

log = logging.getLogger(__name__)

CLOCK_S = 30.0
"""How long a worker may take by the clock, which runs on while others have the processors."""
CLOCK_S_PER_MIB = 3.0
SLICE_S = 0.05
NUM_KEPT = 2
START_LIMIT_S = 60.0
"""How long a fork server may take to import what it needs, or to read a tokenizer."""
STOP_LIMIT_S = 2.0


@dataclass(slots=True, eq=False)
class _Worker:
    pidfd: int
    connection: socket.socket
    num_tokenizers: int
    """The tokenizers that had been kept before it was forked, which are all that it has."""
    is_last: bool = False

    def has_answered(self, timeout_s: float) -> bool:
        readable = select.poll()
        readable.register(self.connection, select.POLLIN)
        return bool(readable.poll(timeout_s * 1000))

    def end(self) -> None:
        self.connection.close()
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        os.close(self.pidfd)


class WorkerPool:
    """Starts nothing before the first job, which a model's load has."""

    def __init__(self) -> None:
        self._idle: deque[_Worker] = deque()
        self._lock = threading.Lock()
        """Held by the one who talks to the fork server."""
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._tokenizers: WeakValueDictionary[str, jobs.TokenizerFacts] = WeakValueDictionary()
        self._sent: set[str] = set()
        self._num_tokenizers = 0
        self._is_closed = False

    def close(self) -> None:
        """Jobs that run fail. Returns when the fork server is gone."""
        self._is_closed = True
        self._end_idle()
        with self._lock:
            self._drop()

    def keep_tokenizer(self, facts: jobs.TokenizerFacts) -> jobs.TokenizerFacts:
        """Workers forked from now on have it, for as long as the returned object is referred to."""
        with self._lock:
            kept = self._tokenizers.setdefault(facts.digest, facts)
            self._num_tokenizers += 1
        self._end_idle()
        return kept

    def run(self, job: jobs.Job, is_wanted: Callable[[], bool] = lambda: True) -> jobs.Result:
        """Polls ``is_wanted``. Raises ``SandboxError``, and ``RecursionError`` for a deep job."""
        frame = jobs.encode_job(job)
        worker = self._idle_one() or self._forked()
        try:
            result = self._ask(worker, frame, is_wanted)
        except BaseException:
            worker.end()
            raise
        self._keep(worker)
        if isinstance(result, jobs.Broken):
            if result.where:
                log.error("a worker's job broke: %s", result.where)
            raise jobs.WorkerLostError(result.reason)
        return result

    def _idle_one(self) -> _Worker | None:
        with suppress(IndexError):
            while True:
                worker = self._idle.pop()
                if not worker.has_answered(0.0):
                    return worker
                worker.end()  # nothing was due: it has ended
        return None

    def _ask(self, worker: _Worker, frame: bytes, is_wanted: Callable[[], bool]) -> jobs.Result:
        limit_s = CLOCK_S + CLOCK_S_PER_MIB * len(frame) / jobs.MIB
        worker.connection.settimeout(limit_s)
        channel, begun_s = Channel(worker.connection), time.monotonic()
        try:
            channel.send(frame)
            while not worker.has_answered(SLICE_S):
                if not is_wanted():
                    raise jobs.NotWantedError
                if time.monotonic() > begun_s + limit_s:
                    raise jobs.WorkerLostError(jobs.LossReason.TIME)
            answer = channel.receive()
        except ChannelError:
            # A worker that used its processor time up has ended; others die at once.
            is_over_time = time.monotonic() - begun_s >= jobs.cpu_limit_s(len(frame))
            raise jobs.WorkerLostError(
                jobs.LossReason.TIME if is_over_time else jobs.LossReason.CRASH
            ) from None
        worker.is_last = answer[:1] == jobs.LAST
        return jobs.decode_result(answer[1:])

    def _keep(self, worker: _Worker) -> None:
        is_current = worker.num_tokenizers == self._num_tokenizers
        if is_current and not worker.is_last and len(self._idle) < NUM_KEPT:
            self._idle.append(worker)
            if self._is_closed:
                self._end_idle()
        else:
            worker.end()

    def _end_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().end()

    def _forked(self) -> _Worker:
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            for _ in range(2):  # a server that has died since the last call is started again
                if self._is_closed:
                    break
                try:
                    return _Worker(self._fork(theirs), ours, self._num_tokenizers)
                except (ChannelError, OSError):
                    self._drop()
        ours.close()
        if self._is_closed:
            raise jobs.NoWorkerError("they have ended")
        log.error("no worker for templates and grammars could be started")
        raise jobs.NoWorkerError("none could be started")

    def _fork(self, theirs: socket.socket) -> int:
        control = self._control or self._start()
        channel, kept = Channel(control), dict(self._tokenizers)
        for digest in kept.keys() - self._sent:
            channel.send(jobs.encode_command(kept[digest]))
        self._sent = set(kept)
        channel.send(jobs.encode_command(list(kept)))
        socket.send_fds(control, [b"\0"], [theirs.fileno()])
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:
            raise ChannelError("the fork server has ended")
        return descriptors[0]

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.settimeout(START_LIMIT_S)
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "inference.sandbox.fork_server", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env=_environment(),
                # A Ctrl-C in the terminal is for the neuron.
                start_new_session=True,
            )
        self._control = ours
        return ours

    def _drop(self) -> None:
        if self._control is not None:
            self._control.close()
        server, self._server, self._control = self._server, None, None
        self._sent.clear()
        if server is None:
            return
        try:
            server.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _environment() -> dict[str, str]:
    """This process's own less all that is secret. One thread each: a fork copies no others."""
    return {
        **child_environment(Role.OTHER),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "USE_TORCH": "0",
        "RUST_BACKTRACE": "0",
    }
