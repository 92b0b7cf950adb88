"""The processes that compute parts of the engine's model, ranks or stages, from both ends. One that
ends by itself ends the model, and none outlives its engine.

    engine   Child  ── frames ──▶  ParentLink   the part's process
                    ◀── frames ──               a reader thread at each end; end of file: it is gone

A process is this one's child, or another host's at the end of a connection. Knows no tensors.
"""

from __future__ import annotations

import ctypes
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import msgspec

from inference.channel import Channel, ChannelClosedError, ChannelError, Connection
from inference.engine.errors import DeviceFault, EngineExit, StepFault, describe_exit
from inference.loading.progress import OnProgress
from inference.logs import configure_logging
from inference.protocol.engine import LoadFailedMessage, LoadProgressed, encode_engine_frame
from inference.protocol.load_errors import PartFailedError
from inference.supervised_threads import SupervisedThread

log = logging.getLogger(__name__)

REAP_S = 5.0
PARENT, ENGINE_FD = "parent", "engine"
NO_FDS: Mapping[str, int] = MappingProxyType({})

PR_SET_PDEATHSIG = 1
"""linux/prctl.h"""
REPLY_TIMEOUT_S = 3600.0
"""The neuron ends a load that makes no progress sooner."""


class OutOfMemory(msgspec.Struct, frozen=True, kw_only=True, tag="out_of_memory"):
    message: str


Reply = TypeVar("Reply", bound=msgspec.Struct)


class ChildEnd(Protocol):
    @property
    def connection(self) -> socket.socket | Connection: ...

    def end_in_words(self) -> str:
        """In words that follow its name. May wait for its end."""
        ...

    def kill(self) -> None: ...


class ChildProcess:
    def __init__(self, module: str, fds: Mapping[str, int] = NO_FDS) -> None:
        """``fds``: descriptors that it inherits, by name. Raises ``OSError``."""
        self.connection, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = start_process(module, {ENGINE_FD: theirs.fileno(), **fds})
        except BaseException:
            self.connection.close()
            raise

    def end_in_words(self) -> str:
        try:
            code = self._process.wait(REAP_S)
        except subprocess.TimeoutExpired:
            return "closed its socket"
        return f"was ended by signal {-code}" if code < 0 else describe_exit(code)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Link:
    """One end of a connection between an engine and a process of its model. Any thread may send."""

    def __init__(
        self,
        name: str,
        channel: Channel,
        decode: Callable[[bytes], Any],
        on_gone: Callable[[], object],
        on_message: Callable[[Any], bool] = lambda _: True,
    ) -> None:
        """``name``: of the other end, in words. ``on_gone`` is called by the thread that notices
        that it is gone, ``on_message`` by the reader's, and returns whether the message goes to
        ``inbox`` as well."""
        self.name = name
        self._channel = channel
        self._decode = decode
        self._on_gone = on_gone
        self._on_message = on_message
        self._sending = threading.Lock()
        self.is_gone = threading.Event()
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        """The messages since ``start``, then ``None``."""

    def send(self, message: msgspec.Struct) -> None:
        """Raises ``ChannelError``."""
        with self._sending:
            self._channel.send(encode_engine_frame(message))

    def receive(self) -> Any:
        """``None``: the other end is gone, or sent an invalid frame."""
        try:
            while True:
                message = self._decode(self._channel.receive())
                if self._on_message(message):
                    return message
        except (ChannelError, msgspec.MsgspecError) as error:
            log.info("the control link of %s: %s", self.name, error)
            self._note_gone()
            return None

    def start(self) -> None:
        name = f"reader-of-{self.name.replace(' ', '-')}"
        SupervisedThread(self._read, name=name, restarts=False).start()

    def _read(self) -> None:
        try:
            while not self.is_gone.is_set():
                self.inbox.put(self.receive())
        finally:
            if not self.is_gone.is_set():  # what cannot be read any more is as good as gone
                self.inbox.put(None)
                self._note_gone()

    def _note_gone(self) -> None:
        self.is_gone.set()
        self._on_gone()


class Child(Link):
    def __init__(
        self,
        name: str,
        end: ChildEnd,
        decode: Callable[[bytes], Any],
        *,
        on_end: Callable[[Child], None],
        on_message: Callable[[Any], bool] = lambda _: True,
    ) -> None:
        super().__init__(name, Channel(end.connection), decode, lambda: on_end(self), on_message)
        self.end = end
        self.start()

    def send(self, message: msgspec.Struct) -> None:
        """Raises ``DeviceFault`` where the child is gone."""
        try:
            super().send(message)
        except ChannelClosedError as error:
            raise DeviceFault(self.end_in_words()) from error

    def reply(
        self,
        kind: type[Reply],
        on_progress: OnProgress = lambda _: None,
        timeout_s: float = REPLY_TIMEOUT_S,
    ) -> Reply:
        """The next answer. Raises ``PartFailedError``, ``MemoryError`` where its device has no
        room, and ``DeviceFault`` where the child ends before or is silent for ``timeout_s``."""
        while True:
            try:
                message = self.inbox.get(timeout=timeout_s)
            except queue.Empty:
                raise DeviceFault(f"{self.name} has sent nothing for {timeout_s:g} s") from None
            match message:
                case LoadProgressed(progress=progress):
                    on_progress(progress)
                case LoadFailedMessage(failure=failure):
                    raise PartFailedError(failure)
                case OutOfMemory(message=problem):
                    raise MemoryError(problem)
                case None:
                    self.inbox.put(None)  # for whoever asks again
                    raise DeviceFault(self.end_in_words())
                case answer if isinstance(answer, kind):
                    return answer
                case other:
                    raise DeviceFault(f"{self.name} sent {type(other).__name__}")

    def end_in_words(self) -> str:
        return f"{self.name} {self.end.end_in_words()}"

    def kill(self) -> None:
        self.end.kill()


def start_process(module: str, fds: Mapping[str, int]) -> subprocess.Popen[bytes]:
    """Starts ``module`` in the engine's process group, so that a signal to the group ends both."""
    options = msgspec.json.encode({PARENT: os.getpid(), **fds})
    return subprocess.Popen(
        [sys.executable, "-m", module, options],
        pass_fds=tuple(fds.values()),
        stdin=subprocess.DEVNULL,
    )


def begin_child(
    options: str, decode: Callable[[bytes], Any]
) -> tuple[ParentLink, dict[str, socket.socket]]:
    """Must come first in a process that ``ChildProcess`` starts, with its argument: it ends with
    its engine. Returns also the sockets to processes beside this one, by name."""
    fds = msgspec.json.decode(options, type=dict[str, int])
    _die_with_parent(fds.pop(PARENT))
    configure_logging("engine")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ending us is the engine's business
    sockets = {name: socket.socket(fileno=fd) for name, fd in fds.items()}
    channel = Channel(sockets.pop(ENGINE_FD))
    return ParentLink(channel, decode, lambda: os._exit(EngineExit.ORPHANED)), sockets


def _die_with_parent(parent_pid: int) -> None:
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it was quicker
        sys.exit(1)


class ParentLink(Link):
    def __init__(
        self, channel: Channel, decode: Callable[[bytes], Any], on_gone: Callable[[], object]
    ) -> None:
        super().__init__("the engine", channel, decode, on_gone)

    def send(self, message: msgspec.Struct) -> None:
        try:
            super().send(message)
        except ChannelError:
            self._note_gone()


class Children:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_closed = False
        self._lost: StepFault | None = None
        self._on_lost: Callable[[StepFault], object] | None = None
        self.all: list[Child] = []

    def __len__(self) -> int:
        return len(self.all)

    @property
    def lost(self) -> StepFault | None:
        with self._lock:
            return self._lost

    def send(self, message: msgspec.Struct) -> None:
        """To all. Raises ``DeviceFault`` where one is gone."""
        for child in self.all:
            child.send(message)

    def watch(self, on_lost: Callable[[StepFault], object]) -> None:
        """``on_lost`` is called once, on some thread, when a child ends by itself."""
        with self._lock:
            self._on_lost, lost = on_lost, self._lost
        if lost is not None:
            on_lost(lost)

    def lose(self, fault: StepFault) -> None:
        """Any thread; the first fault is kept."""
        with self._lock:
            if self._is_closed or self._lost is not None:
                return
            self._lost, on_lost = fault, self._on_lost
        if on_lost is not None:
            on_lost(fault)

    def lose_child(self, child: Child) -> None:
        self.lose(DeviceFault(child.end_in_words()))

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        for child in self.all:
            child.kill()
