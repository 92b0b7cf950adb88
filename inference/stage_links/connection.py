"""One encrypted connection between two hosts. One thread may read while another writes.

OpenSSL allows one call at a time for a connection. Calls are therefore made under a lock on a
socket that never blocks, and threads wait outside the lock, each for at most the stall timeout.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Callable
from functools import partial

STALL_TIMEOUT_S = 8.0
"""The longest that the other end may take nothing, or leave a frame that it has begun as it is."""
ENCRYPTED_AT_ONCE_BYTES = 1 << 16
"""Written in one call: a reader waits no longer than these take to encrypt."""
KEEPALIVE_IDLE_S = 2
KEEPALIVE_INTERVAL_S = 1
KEEPALIVE_PROBES = 5
"""A host that is gone without a word (power, cable) is noticed after some seven seconds, also on a
link that carries nothing."""


class SecureConnection:
    """A connection whose ends have proved themselves: made by ``links``."""

    def __init__(
        self, connection: ssl.SSLSocket, *, stall_timeout_s: float = STALL_TIMEOUT_S
    ) -> None:
        connection.setblocking(False)
        _notice_silence(connection)
        self._socket = connection
        self._fileno = connection.fileno()
        self._stall_timeout_s = stall_timeout_s
        self._lock = threading.Lock()
        self._num_waiting = 0
        self._is_closed = False

    def sendall(self, data: bytes | bytearray | memoryview) -> None:
        """Blocks while the other end does not read. Raises ``OSError``: ``TimeoutError`` where it
        has taken nothing for the stall timeout."""
        view = memoryview(data).cast("B")
        sent = 0
        while sent < len(view):
            part = view[sent : sent + ENCRYPTED_AT_ONCE_BYTES]
            sent += self._call(partial(self._socket.send, part), self._stall_timeout_s)

    def read_into(self, view: memoryview, *, begins_frame: bool) -> None:
        """Fills ``view``. Blocks for as long as nothing comes where it ``begins_frame``. Raises
        ``EOFError`` and ``OSError``: ``TimeoutError`` where a frame stopped coming."""
        received = 0
        while received < len(view):
            is_idle = begins_frame and not received
            num_bytes = self._call(
                partial(self._socket.recv_into, view[received:]),
                None if is_idle else self._stall_timeout_s,
            )
            if not num_bytes:
                raise EOFError("end of file")
            received += num_bytes

    @property
    def is_left(self) -> bool:
        """The other end has closed it, or sends no more."""
        poll = select.poll()
        poll.register(self._fileno, select.POLLRDHUP)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Any thread. Those that wait raise ``OSError``."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            if not self._num_waiting:
                self._socket.close()
                return
            with contextlib.suppress(OSError):  # the other end was faster
                self._socket.shutdown(socket.SHUT_RDWR)

    def _call(self, operation: Callable[[], int], timeout_s: float | None) -> int:
        while True:
            with self._lock:
                if self._is_closed:
                    raise ConnectionAbortedError("closed at this end")
                try:
                    return operation()
                except ssl.SSLWantReadError:
                    events = select.POLLIN
                except ssl.SSLWantWriteError:
                    events = select.POLLOUT
                self._num_waiting += 1
            is_ready = False
            try:
                is_ready = wait_for(self._fileno, events, timeout_s)
            finally:
                self._end_waiting()
            if not is_ready:
                raise TimeoutError(f"the other end has done nothing for {timeout_s:g} s")

    def _end_waiting(self) -> None:
        """The last one that waited closes: no other socket may get its number before."""
        with self._lock:
            self._num_waiting -= 1
            if self._is_closed and not self._num_waiting:
                self._socket.close()


def wait_for(fileno: int, events: int, timeout_s: float | None) -> bool:
    poll = select.poll()
    poll.register(fileno, events)
    return bool(poll.poll(None if timeout_s is None else 1000 * timeout_s))


def _notice_silence(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    gone_after_ms = 1000 * (KEEPALIVE_IDLE_S + KEEPALIVE_PROBES * KEEPALIVE_INTERVAL_S)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", gone_after_ms),
    ):
        if hasattr(socket, name):  # not every system has all of them
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
