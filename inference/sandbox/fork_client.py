"""The neuron's end of a fork server: starts it, has it fork workers, and starts it again when it is
gone. Any thread may call; calls wait for each other.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading

from inference.channel import Channel, ChannelError
from inference.environment import Role, child_environment
from inference.sandbox.errors import NoWorkerError
from inference.sandbox.jobs import (
    Command,
    ForgetTokenizer,
    ForkWorker,
    KeepTokenizer,
    ReapWorker,
    TokenizerFacts,
    decode_reply,
    encode_frame,
)

log = logging.getLogger(__name__)

START_LIMIT_S = 60.0
"""How long a fork server may take to import what it needs, or to read a tokenizer."""
STOP_LIMIT_S = 2.0


class ForkClient:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._channel: Channel | None = None
        self._tokenizers: dict[str, TokenizerFacts] = {}
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

    def reap(self, pid: int) -> int:
        """The number of the signal that ended the worker, which has ended or is about to; 0: no
        signal, or it is unknown."""
        with self._lock:
            try:
                return self._ask(ReapWorker(pid)) if self._channel is not None else 0
            except ChannelError:
                self._drop()
                return 0

    def keep_tokenizer(self, facts: TokenizerFacts) -> None:
        """Workers that are forked from now on have it."""
        with self._lock:
            self._tokenizers[facts.digest] = facts
            self._send(KeepTokenizer(facts))

    def forget_tokenizer(self, digest: str) -> None:
        with self._lock:
            if self._tokenizers.pop(digest, None) is not None:
                self._send(ForgetTokenizer(digest))

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
                self._channel.send(encode_frame(ForkWorker()))
                socket.send_fds(self._control, [b"\0"], [theirs.fileno()])
                return decode_reply(self._channel.receive())
            except (ChannelError, OSError):
                self._drop()
        log.error("no worker for templates and grammars could be started")
        raise NoWorkerError("none could be started")

    def _send(self, command: Command) -> None:
        """Send to the fork server. Without one, the next gets the tokenizers when it starts."""
        if self._channel is not None:
            try:
                self._ask(command)
            except ChannelError:
                self._drop()

    def _ask(self, command: Command) -> int:
        """Raises ``ChannelError``."""
        assert self._channel is not None
        self._channel.send(encode_frame(command))
        return decode_reply(self._channel.receive())

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
        for facts in self._tokenizers.values():
            self._ask(KeepTokenizer(facts))

    def _drop(self) -> None:
        if self._control is not None:
            self._control.close()
        self._control = self._channel = None
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def end_process(pid: int) -> None:
    """End a worker that has not been reaped, so that its process id cannot be another process's."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


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
