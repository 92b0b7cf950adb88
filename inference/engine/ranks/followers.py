"""The processes of the other ranks, from the engine's end: started, told of steps, listened to.

    engine thread   ── frames ──▶ follower      a thread each reads what followers say
    reader threads  ◀── frames ──               end of file: the rank is gone, and so is the model

Knows sockets and processes; no tensors.
"""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable

from inference.engine.errors import ChannelClosedError, ChannelError
from inference.engine.faults.exit_codes import describe_exit
from inference.engine.faults.kinds import DeviceFault
from inference.engine.ranks.messages import (
    FollowerMessage,
    Join,
    LeaderMessage,
    StepFailed,
    decode_follower_message,
    encode,
)
from inference.engine.serving.channel import Channel
from inference.supervised_threads import SupervisedThread

POLL_S = 0.2
REAP_S = 5.0
"""How long to wait for the end of a process that has closed its socket."""


class Follower:
    """``said``: what it sent, by its reader's thread. It waits for its ``Join``."""

    def __init__(
        self,
        rank: int,
        on_end: Callable[[Follower], None],
        on_step_failed: Callable[[StepFailed], None],
    ) -> None:
        """The callbacks are called by the reader's thread; ``on_step_failed`` before the message is
        in ``said``."""
        self.rank = rank
        self.said: queue.SimpleQueue[FollowerMessage] = queue.SimpleQueue()
        self.has_ended = threading.Event()
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = _start_process(theirs.fileno())
        except BaseException:
            ours.close()
            raise
        self._channel = Channel(ours)
        self._on_end = on_end
        self._on_step_failed = on_step_failed
        SupervisedThread(self._read, name=f"rank-{self.rank}", restarts=False).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: LeaderMessage) -> None:
        """Raises ``DeviceFault`` where it is gone."""
        try:
            self._channel.send(encode(message))
        except ChannelClosedError as error:
            raise DeviceFault(self.end_in_words()) from error

    def end_in_words(self) -> str:
        try:
            code = self._process.wait(REAP_S)
        except subprocess.TimeoutExpired:
            return f"rank {self.rank} closed its socket"
        how = f"was ended by signal {-code}" if code < 0 else describe_exit(code)
        return f"rank {self.rank} {how}"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        try:
            while True:
                message = decode_follower_message(self._channel.receive())
                if isinstance(message, StepFailed):
                    self._on_step_failed(message)
                self.said.put(message)
        except ChannelError:
            pass
        finally:  # a follower that cannot be read any more is as good as gone
            self.has_ended.set()
            self._on_end(self)


def _start_process(fd: int) -> subprocess.Popen[bytes]:
    """It is of the engine's process group, so that whoever ends the one ends the other."""
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "inference.engine.ranks.follower",
            *("--fd", str(fd), "--parent", str(os.getpid())),
        ],
        pass_fds=(fd,),
        stdin=subprocess.DEVNULL,
    )


class Followers:
    """Ranks 1, 2, … of one model."""

    def __init__(self, joins: list[Join]) -> None:
        """Starts them, all or none. Raises ``OSError`` where a process cannot be started, and
        ``DeviceFault`` where one is gone at once."""
        self._lock = threading.Lock()
        self._is_closed = False
        self._lost: DeviceFault | None = None
        self._on_lost: Callable[[DeviceFault], object] | None = None
        self.on_step_failed: Callable[[StepFailed], object] = lambda failed: None
        """Called by a reader's thread, as soon as a rank reports it: the engine's thread may be
        waiting for a sum that this rank does not come to."""
        self._all: list[Follower] = []
        try:
            for join in joins:
                self._all.append(Follower(join.rank, self._note_end, self._note_step_failed))
                self._all[-1].send(join)
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._all)

    @property
    def pids(self) -> list[int]:
        return [follower.pid for follower in self._all]

    @property
    def lost(self) -> DeviceFault | None:
        """Which rank is gone, if one is."""
        with self._lock:
            return self._lost

    def watch(self, on_lost: Callable[[DeviceFault], object]) -> None:
        """``on_lost`` is called once, on some thread, when a rank ends by itself."""
        with self._lock:
            self._on_lost, lost = on_lost, self._lost
        if lost is not None:
            on_lost(lost)

    def send(self, message: LeaderMessage) -> None:
        """Raises ``DeviceFault`` where one is gone."""
        for follower in self._all:
            follower.send(message)

    def next_of_each(self, timeout_s: float) -> list[FollowerMessage]:
        """The next message of each rank. Raises ``DeviceFault`` where one ends before, or says
        nothing for so long."""
        return [self._next(follower, timeout_s) for follower in self._all]

    def unread(self, wait_s: float) -> list[FollowerMessage]:
        """What was said without being asked for; waits for the first of it."""
        found: list[FollowerMessage] = []
        for follower in self._all:
            try:
                while True:
                    found.append(follower.said.get(timeout=0 if found else wait_s))
            except queue.Empty:
                continue
        return found

    def close(self) -> None:
        """Ends all of them, whatever they do."""
        with self._lock:
            self._is_closed = True
        for follower in self._all:
            follower.kill()

    def _next(self, follower: Follower, timeout_s: float) -> FollowerMessage:
        waited_s = 0.0
        while waited_s < timeout_s:
            try:
                return follower.said.get(timeout=POLL_S)
            except queue.Empty:
                waited_s += POLL_S
            if follower.has_ended.is_set() and follower.said.empty():
                raise DeviceFault(follower.end_in_words())
        raise DeviceFault(f"rank {follower.rank} has said nothing for {timeout_s:g} s")

    def _note_step_failed(self, failed: StepFailed) -> None:
        self.on_step_failed(failed)

    def _note_end(self, follower: Follower) -> None:
        fault = DeviceFault(follower.end_in_words())
        with self._lock:
            if self._is_closed or self._lost is not None:
                return
            self._lost, on_lost = fault, self._on_lost
        if on_lost is not None:
            on_lost(fault)
