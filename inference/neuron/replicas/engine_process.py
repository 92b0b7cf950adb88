"""Engine processes, and the last lines that they wrote to standard error, by model.

A process holds one end of a socket pair and ends when the other end closes, so it cannot outlive
this process, whatever kills it. Its lines outlive it: those of a failed load contain the reason.
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
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import IO

import redis

from inference.channel import Channel, ChannelClosedError
from inference.engine.errors import describe_exit
from inference.environment import Role, child_environment
from inference.neuron.errors import EngineGoneError
from inference.neuron.loads.watch import SilenceTimer
from inference.protocol.engine import (
    CancelSequence,
    EngineCommand,
    EngineMessage,
    Shutdown,
    decode_engine_message,
    encode_engine_frame,
)
from inference.protocol.keys import engine_log_key
from inference.protocol.load import LoadSpec
from inference.protocol.neuron_tasks import (
    LOG_ANSWER_EXPIRY_S,
    MAX_LOG_LINES,
    EngineLogAnswer,
    encode_engine_log,
)
from inference.redaction import Redactor, secrets_of
from inference.settings.neuron import ENGINE_COMMAND, STEP_TIMEOUT_S
from inference.supervised_threads import SupervisedThread

log = logging.getLogger(__name__)

REAP_TIMEOUT_S = 2.0
STOP_GRACE_S = 2.0
AHEAD_LIMIT_S = 60.0
LAST_LINES_S = 0.5
OWN_ENGINE = "inference.engine"
MAX_LINE_BYTES = 64 * 1024
MARGIN_S = 15.0
"""Added to the step's timeout, so that the engine's own watchdog, which knows more, acts first."""


def engine_command(environment: Mapping[str, str]) -> list[str]:
    """``--fd N`` is appended. HELEXA_ENGINE_COMMAND is for running engines under numactl, a
    profiler or a container runtime."""
    return list(ENGINE_COMMAND.read(environment)) or [sys.executable, "-m", OWN_ENGINE]


def silence_limit_s(environment: Mapping[str, str]) -> float | None:
    """``None``: no limit. Raises ``SettingError``."""
    timeout_s = STEP_TIMEOUT_S.read(environment) or None
    return None if timeout_s is None else timeout_s + MARGIN_S


def is_own_engine(command: Sequence[str]) -> bool:
    return OWN_ENGINE in command


class EngineProcess:
    """``messages`` belongs to one thread; the other methods to any."""

    def __init__(
        self,
        spec: LoadSpec | None,
        command: Sequence[str],
        *,
        on_line: Callable[[bytes], None] | None = None,
    ) -> None:
        """``spec`` is ``None``: ``load`` will send it. ``on_line`` runs on a thread; ``None``: the
        process inherits this one's standard error. Raises ``OSError``."""
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [*command, "--fd", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stderr=None if on_line is None and spec is not None else subprocess.PIPE,
                # No secrets; and CUDA devices are numbered as by the driver, and so by discovery.
                env={**child_environment(Role.ENGINE), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
                # A Ctrl-C in the terminal is for the neuron, which ends its engines in order.
                start_new_session=True,
            )
        self._stderr_reader: SupervisedThread | None = None
        self._channel = Channel(self._socket)
        self._send_lock = threading.Lock()
        self.started_s = time.monotonic()
        self._stop_asked_s: float | None = None
        self.silence: SilenceTimer | None = None
        """Time since its last message; ``None`` while it need not send any."""
        if spec is not None:
            self.load(spec, on_line)

    def load(self, spec: LoadSpec, on_line: Callable[[bytes], None] | None) -> None:
        self.started_s = time.monotonic()
        if on_line is not None and self._process.stderr is not None:
            read = partial(_read_lines, self._process.stderr, on_line)
            self._stderr_reader = SupervisedThread(read, name="engine-stderr")
            self._stderr_reader.start()
        with contextlib.suppress(EngineGoneError):  # its end is reported by messages()
            self._send_frame(encode_engine_frame(spec))

    @property
    def pid(self) -> int:
        return self._process.pid

    def messages(self) -> Iterator[EngineMessage]:
        """Ends when the process closes its end. Raises ``msgspec.DecodeError`` for a bad frame."""
        while True:
            try:
                frame = self._channel.receive()
            except ChannelClosedError:
                return
            if (silence := self.silence) is not None:
                silence.end()
            yield decode_engine_message(frame)

    def send(self, command: EngineCommand) -> None:
        """Raises ``EngineGoneError``."""
        self._send_frame(encode_engine_frame(command))

    def cancel(self, sequence_id: str) -> None:
        """Unknown ids and dead engines are ignored."""
        with contextlib.suppress(EngineGoneError):
            self.send(CancelSequence(sequence_id=sequence_id))

    def stop(self) -> None:
        if self._stop_asked_s is None:
            self._stop_asked_s = time.monotonic()
        with contextlib.suppress(EngineGoneError, OSError):
            self.send(Shutdown())
            self._socket.shutdown(socket.SHUT_WR)

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def is_stopping(self) -> bool:
        return self._stop_asked_s is not None

    def check(self, silence_limit_s: float | None) -> float:
        """Call once a second. Returns the seconds of silence where they are over the limit, else
        0."""
        now_s = time.monotonic()
        if self._stop_asked_s is not None and now_s - self._stop_asked_s > STOP_GRACE_S:
            self.kill()
        silent_s = 0.0 if (silence := self.silence) is None else silence.check(now_s)
        return silent_s if silence_limit_s is not None and silent_s > silence_limit_s else 0.0

    def abandon(self) -> None:
        """A process that waits for its device in the kernel outlives even SIGKILL for a while."""
        self.kill()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        if not self.has_ended:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def reap(self) -> str:
        """Call after ``messages`` ended. Returns how the process ended, for operators."""
        try:
            code = self._process.wait(REAP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self._process.wait()
        with self._send_lock:
            self._channel.close()
        if self._stderr_reader is not None:  # a child of its may hold the other end for longer
            self._stderr_reader.join(LAST_LINES_S)
        elif self._process.stderr is not None:
            self._process.stderr.close()
        if code < 0:
            return f"was ended by signal {-code} ({signal.Signals(-code).name})"
        return describe_exit(code)

    @property
    def ended_by_itself(self) -> bool:
        """Valid after ``reap``. SIGKILL comes from outside: an operator, the kernel, this
        neuron."""
        return self._process.returncode not in (None, -signal.SIGKILL)

    def _send_frame(self, frame: bytes) -> None:
        try:
            with self._send_lock:
                self._channel.send(frame)
        except ChannelClosedError as error:
            raise EngineGoneError(f"engine process {self.pid} is gone") from error


class EngineStarts:
    """The first engine may be started ahead of its load, because importing torch takes seconds."""

    def __init__(
        self,
        command: Sequence[str],
        on_line: Callable[[str], Callable[[bytes], None]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command = command
        self._clock = clock
        self._on_line = on_line
        self._lock = threading.Lock()
        self._ahead: EngineProcess | None = None
        self._ahead_ends_s = 0.0

    def start_ahead(self) -> None:
        """A failure is ignored: the load then starts its own engine."""
        with self._lock, contextlib.suppress(OSError):
            self._ahead_ends_s = self._clock() + AHEAD_LIMIT_S
            self._ahead = EngineProcess(None, self._command)

    def start(self, spec: LoadSpec) -> EngineProcess:
        """Raises ``OSError``."""
        ahead, on_line = self._take_ahead(), self._on_line(spec.model)
        if ahead is not None and not ahead.has_ended:
            ahead.load(spec, on_line)
            return ahead
        if ahead is not None:
            ahead.reap()
        return EngineProcess(spec, self._command, on_line=on_line)

    def tick(self) -> None:
        if self._ahead is not None and self._clock() >= self._ahead_ends_s:
            self.close()

    def close(self) -> None:
        if (ahead := self._take_ahead()) is not None:
            ahead.kill()
            ahead.reap()

    def _take_ahead(self) -> EngineProcess | None:
        with self._lock:
            ahead, self._ahead = self._ahead, None
        return ahead


def _read_lines(stream: IO[bytes], on_line: Callable[[bytes], None]) -> None:
    """Reads until every process that has the other end has closed it: a writer blocks once the pipe
    is full."""
    while line := stream.readline(MAX_LINE_BYTES):
        on_line(line)
    stream.close()


MAX_MODEL_BYTES = 256 * 1024
MAX_MODELS = 64
STDERR = 2


class EngineLogs:
    def __init__(self, client: redis.Redis, *, neuron: str) -> None:
        self._client = client
        self._neuron = neuron
        self._lock = threading.Lock()
        self._by_model: dict[str, deque[bytes]] = {}
        """The model whose engine wrote last comes last."""
        self._redact = Redactor(secrets_of(os.environ))

    def writer(self, model: str) -> Callable[[bytes], None]:
        self._add(model)

        def write(line: bytes) -> None:
            with contextlib.suppress(OSError):
                os.write(STDERR, line)
            self._add(model, line)

        return write

    def lines(self, model: str, num_lines: int) -> list[str] | None:
        """``None``: no engine for it has run."""
        with self._lock:
            kept = self._by_model.get(model)
            if kept is None:
                return None
            last = list(kept)[-num_lines:] if num_lines > 0 else []
        return [self._redact(line.decode(errors="replace").rstrip("\r\n")) for line in last]

    def send(self, ask_id: str, model: str, num_lines: int) -> None:
        lines = self.lines(model, min(num_lines, MAX_LOG_LINES))
        answer = EngineLogAnswer(is_known=lines is not None, lines=lines or [])
        key = engine_log_key(self._neuron, ask_id)
        try:
            with self._client.pipeline(transaction=True) as pipeline:
                pipeline.rpush(key, encode_engine_log(answer))
                pipeline.expire(key, LOG_ANSWER_EXPIRY_S)
                pipeline.execute()
        except redis.RedisError as error:
            log.warning("the log of %s could not be sent: %s", model, error)

    def _add(self, model: str, *lines: bytes) -> None:
        with self._lock:
            kept = self._by_model.pop(model, None) or deque()
            kept.extend(lines)
            while sum(map(len, kept)) > MAX_MODEL_BYTES:
                kept.popleft()
            self._by_model[model] = kept
            while len(self._by_model) > MAX_MODELS:
                del self._by_model[next(iter(self._by_model))]
