"""A pool of sandbox workers: idle ones are kept, and a fork server makes more when none is idle.

    run ─▶ an idle worker, or a new one ─▶ send the job ─▶ wait for its result ─▶ idle again
                                             │ time over, not wanted, dead
                                             ▼
                                             it is killed; the next job forks another

The neuron's intake bounds how many run at once, for each account and model. Any thread may call.
"""

from __future__ import annotations

import logging
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from signal import SIGPROF
from weakref import WeakValueDictionary

from inference.channel import Channel, ChannelError
from inference.environment import Role, child_environment
from inference.sandbox import jobs
from inference.sandbox.errors import LossReason, NotWantedError, NoWorkerError, WorkerLostError
from inference.supervised_threads import SupervisedThread

log = logging.getLogger(__name__)

CLOCK_S = 30.0
"""How long a worker may take by the clock, which runs on while others have the processors."""
CLOCK_S_PER_MIB = 3.0
SLICE_S = 0.05
"""How often a caller that waits looks whether it is still wanted."""
NUM_KEPT = 2
"""The number of idle workers that stay; the others end."""
START_LIMIT_S = 60.0
"""How long a fork server may take to import what it needs, or to read a tokenizer."""
STOP_LIMIT_S = 2.0


@dataclass(slots=True, eq=False)
class _Worker:
    pid: int
    connection: socket.socket
    channel: Channel
    num_tokenizers: int
    """The tokenizers that had been kept before it was forked, which are all that it has."""
    is_last: bool = False
    """It ends, and takes no further job."""

    def has_answered(self, timeout_s: float) -> bool:
        readable = select.poll()
        readable.register(self.connection, select.POLLIN)
        return bool(readable.poll(timeout_s * 1000))


class WorkerPool:
    """Starts nothing before the first job, or ``start``."""

    def __init__(self) -> None:
        self._forks = _ForkClient()
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._num_tokenizers = 0
        self._is_closed = False

    def start(self) -> None:
        """Forks the first workers, in a thread of its own."""
        SupervisedThread(self._warm_up, name="sandbox-start", restarts=False).start()

    def close(self) -> None:
        """Ends all workers; jobs that run fail. Returns when they are gone."""
        with self._lock:
            self._is_closed = True
        self._end_idle()
        self._forks.close()

    def keep_tokenizer(self, facts: jobs.TokenizerFacts) -> jobs.TokenizerFacts:
        """Workers that are forked from now on have it, for as long as what this returns is referred
        to."""
        kept = self._forks.keep_tokenizer(facts)
        with self._lock:
            self._num_tokenizers += 1
        self._end_idle()
        return kept

    def run(self, job: jobs.Job, is_wanted: Callable[[], bool] = lambda: True) -> jobs.Result:
        """Blocks. ``is_wanted``: whether anybody still waits for the result; called a few times a
        second. Raises ``SandboxError``."""
        frame = jobs.encode_frame(job)
        worker = self._idle_one() or self._forked()
        try:
            result = self._ask(worker, frame, is_wanted)
        except BaseException:
            self._end(worker)
            raise
        self._keep(worker)
        if isinstance(result, jobs.Broken):
            if result.where:
                log.error("a worker's job broke: %s", result.where)
            raise WorkerLostError(LossReason(result.reason), tuple(result.steps))
        return result

    def _idle_one(self) -> _Worker | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                worker = self._idle.pop()
            if not worker.has_answered(0.0):  # nothing is due: it has ended
                return worker
            self._end(worker)

    def _forked(self) -> _Worker:
        num_tokenizers = self._num_tokenizers
        pid, connection = self._forks.fork()
        return _Worker(pid, connection, Channel(connection), num_tokenizers)

    def _ask(self, worker: _Worker, frame: bytes, is_wanted: Callable[[], bool]) -> jobs.Result:
        limit_s = CLOCK_S + CLOCK_S_PER_MIB * len(frame) / jobs.MIB
        worker.connection.settimeout(limit_s)
        give_up_s = time.monotonic() + limit_s
        try:
            worker.channel.send(frame)
            while not worker.has_answered(SLICE_S):
                if not is_wanted():
                    raise NotWantedError
                if time.monotonic() > give_up_s:
                    raise WorkerLostError(LossReason.TIME)
            frame = worker.channel.receive()
        except ChannelError:
            is_over_time = self._end(worker) == SIGPROF
            raise WorkerLostError(LossReason.TIME if is_over_time else LossReason.CRASH) from None
        worker.is_last = frame[:1] == jobs.LAST
        return jobs.decode_result(frame[1:])

    def _keep(self, worker: _Worker) -> None:
        with self._lock:
            is_kept = (
                not (worker.is_last or self._is_closed)
                and worker.num_tokenizers == self._num_tokenizers
                and len(self._idle) < NUM_KEPT
            )
            if is_kept:
                self._idle.append(worker)
        if not is_kept:
            self._end(worker)

    def _end_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            self._end(worker)

    def _end(self, worker: _Worker) -> int:
        """The number of the signal that ended it; 0: it has been ended before, or by none."""
        worker.connection.close()
        pid, worker.pid = worker.pid, 0
        return self._forks.end(pid) if pid else 0

    def _warm_up(self) -> None:
        for _ in range(NUM_KEPT):
            try:
                self._keep(self._forked())
            except NoWorkerError:
                return


class _ForkClient:
    """The neuron's end of a fork server: starts it, has it fork and end workers, and starts it
    again when it is gone. Calls wait for each other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._channel: Channel | None = None
        self._tokenizers: WeakValueDictionary[str, jobs.TokenizerFacts] = WeakValueDictionary()
        self._sent: set[str] = set()
        """Digests of the tokenizers that the fork server has."""
        self._is_closed = False

    def fork(self) -> tuple[int, socket.socket]:
        """A new worker's process id and our end of its socket. Raises ``NoWorkerError``."""
        ours, theirs = socket.socketpair()
        try:
            with theirs, self._lock:
                return self._fork(theirs), ours
        except BaseException:
            ours.close()
            raise

    def end(self, pid: int) -> int:
        """Kill a worker, and reap it. The number of the signal that ended it; 0: no signal, or it
        is unknown."""
        with self._lock:
            return self._try(jobs.EndWorker(pid))

    def keep_tokenizer(self, facts: jobs.TokenizerFacts) -> jobs.TokenizerFacts:
        with self._lock:
            kept = self._tokenizers.setdefault(facts.digest, facts)
            if self._channel is not None and facts.digest not in self._sent:
                self._try(jobs.KeepTokenizer(facts))
                self._sent.add(facts.digest)
            return kept

    def close(self) -> None:
        """The fork server ends, and its workers with their sockets."""
        with self._lock:
            self._is_closed = True
            self._drop()

    def _fork(self, theirs: socket.socket) -> int:
        for _ in range(2):  # one that has died since the last call is started again
            try:
                self._start()
                assert self._channel is not None and self._control is not None
                digests = list(self._tokenizers)
                self._sent.intersection_update(digests)
                self._channel.send(jobs.encode_frame(jobs.ForkWorker(digests)))
                socket.send_fds(self._control, [b"\0"], [theirs.fileno()])
                return jobs.decode_reply(self._channel.receive())
            except (ChannelError, OSError):
                self._drop()
        log.error("no worker for templates and grammars could be started")
        raise NoWorkerError("none could be started")

    def _try(self, command: jobs.Command) -> int:
        """Its answer; 0 without a fork server. The next one gets the tokenizers when it starts."""
        try:
            return 0 if self._channel is None else self._ask(command)
        except ChannelError:
            self._drop()
            return 0

    def _ask(self, command: jobs.Command) -> int:
        """Raises ``ChannelError``."""
        assert self._channel is not None
        self._channel.send(jobs.encode_frame(command))
        return jobs.decode_reply(self._channel.receive())

    def _start(self) -> None:
        """Raises ``ChannelError``, ``OSError``, ``NoWorkerError``."""
        if self._is_closed:
            raise NoWorkerError("they have ended")
        if self._channel is not None:
            return
        ours, theirs = socket.socketpair()
        ours.settimeout(START_LIMIT_S)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "inference.sandbox.fork_server", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env=_environment(),
                # A Ctrl-C in the terminal is for the neuron.
                start_new_session=True,
            )
        self._control, self._channel = ours, Channel(ours)
        for digest, facts in list(self._tokenizers.items()):
            self._ask(jobs.KeepTokenizer(facts))
            self._sent.add(digest)

    def _drop(self) -> None:
        if self._control is not None:
            self._control.close()
        self._control = self._channel = None
        self._sent.clear()
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


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
