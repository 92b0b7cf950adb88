"""Connections between the stages of one replica on several hosts, authenticated both ways. The host
of a later stage listens until all of its links are made; the engine and earlier stages dial.

    control makes an identity for each end ──load job──▶ its host

    anyone ── connects ──▶ handshake ── certificate and purpose expected? ──▶ a link
                              └── too slow, too many, not expected: closed, nothing is read

Each handshake has a thread, so that a slow stranger keeps no expected end out. Imports no torch.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial

from inference.link_identities import (
    Purpose,
    certificate_der,
    client_context,
    protocol_of,
    server_context,
)
from inference.protocol.load import LinkIdentity

log = logging.getLogger(__name__)

STALL_TIMEOUT_S = 8.0
"""The longest that the other end may take nothing, or leave a frame that it has begun as it is."""
ENCRYPTED_AT_ONCE_BYTES = 1 << 16
"""Written in one call: a reader waits no longer than these take to encrypt."""
KEEPALIVE_IDLE_S = 2
KEEPALIVE_INTERVAL_S = 1
KEEPALIVE_PROBES = 5
"""A host without power or cable is noticed after some seven seconds, also on an idle link."""
MAX_PORT = 65535
HANDSHAKE_TIMEOUT_S = 5.0
MAX_HANDSHAKES = 32
POLL_S = 0.05
RETRY_INTERVAL_S = 0.2
ACCEPTED = b"\x01"
"""A listener's first bytes on a link that it has accepted."""


class StageLinkError(Exception):
    """A link was not made. One that breaks later raises ``OSError``, as a socket does."""


class LinkRefusedError(StageLinkError):
    """The other end lacks the certificate that the load job names. Retrying changes nothing."""


class LinkTimeoutError(StageLinkError):
    pass


class SecureConnection:
    """One thread may read while another writes. OpenSSL allows one call at a time for a connection:
    calls are made under a lock on a socket that never blocks, and threads wait outside the lock."""

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
        """Raises ``OSError``: ``TimeoutError`` if the other end stops taking."""
        view = memoryview(data).cast("B")
        sent = 0
        while sent < len(view):
            part = view[sent : sent + ENCRYPTED_AT_ONCE_BYTES]
            sent += self._call(partial(self._socket.send, part), self._stall_timeout_s)

    def read_into(self, view: memoryview, *, begins_frame: bool) -> None:
        """Raises ``EOFError`` and ``OSError``: ``TimeoutError`` if a frame stops coming."""
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
        return _is_ready(self._fileno, select.POLLRDHUP, 0.0)

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
                is_ready = _is_ready(self._fileno, events, timeout_s)
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


def _is_ready(fileno: int, events: int, timeout_s: float | None) -> bool:
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


def address_in_words(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def address_of(words: str) -> tuple[str, int]:
    host, _, port = words.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= MAX_PORT:
        raise ValueError(f"{words!r} is no address of a stage")
    return host, int(port)


def dial(
    address: tuple[str, int],
    identity: LinkIdentity,
    peer: str,
    purpose: Purpose,
    *,
    timeout_s: float,
    stall_timeout_s: float = STALL_TIMEOUT_S,
) -> SecureConnection:
    """The peer may begin to listen later. Raises ``LinkRefusedError``, ``LinkTimeoutError`` and,
    for unusable credentials, ``ValueError``."""
    context = client_context(identity, peer, purpose)
    where = f"{address[0]}:{address[1]}"
    deadline_s = time.monotonic() + timeout_s
    problem: OSError | None = None
    while (left_s := deadline_s - time.monotonic()) > 0:
        try:
            connection = _open(address, context, peer, purpose, min(left_s, HANDSHAKE_TIMEOUT_S))
            return SecureConnection(connection, stall_timeout_s=stall_timeout_s)
        except OSError as error:
            is_left = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)
            if isinstance(error, ssl.SSLError) and not is_left:
                raise LinkRefusedError(f"{purpose} link to {where}: {error}") from error
            problem = error
        time.sleep(min(RETRY_INTERVAL_S, max(0.0, deadline_s - time.monotonic())))
    raise LinkTimeoutError(f"no {purpose} link to {where} within {timeout_s:g} s: {problem}")


def _open(
    address: tuple[str, int],
    context: ssl.SSLContext,
    peer: str,
    purpose: Purpose,
    timeout_s: float,
) -> ssl.SSLSocket:
    with socket.create_connection(address, timeout_s) as plain:
        connection = context.wrap_socket(plain)  # takes the plain one over
    try:
        is_peer = connection.getpeercert(binary_form=True) == certificate_der(peer)
        if not is_peer or connection.selected_alpn_protocol() != protocol_of(purpose):
            raise LinkRefusedError(f"{address[0]}:{address[1]} listens for other links")
        # Under TLS 1.3 a client has finished before the server has checked its certificate.
        if connection.recv(len(ACCEPTED)) != ACCEPTED:
            raise ConnectionResetError("the listener closed the connection")
    except BaseException:
        connection.close()
        raise
    return connection


class LinkListener:
    def __init__(
        self,
        address: tuple[str, int],
        identity: LinkIdentity,
        expected: Mapping[Purpose, str],
        *,
        stall_timeout_s: float = STALL_TIMEOUT_S,
    ) -> None:
        """``expected``: each other end's certificate. Raises ``OSError`` and ``ValueError``."""
        self._expected = {
            protocol_of(purpose): (purpose, certificate_der(peer))
            for purpose, peer in expected.items()
        }
        self._stall_timeout_s = stall_timeout_s
        self._context = server_context(identity, dict.fromkeys(expected.values()))
        self._context.set_alpn_protocols(list(self._expected))
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._socket = socket.create_server(address, family=family, backlog=MAX_HANDSHAKES)
        self._socket.settimeout(POLL_S)
        self.port: int = self._socket.getsockname()[1]
        self._handshakes = threading.Semaphore(MAX_HANDSHAKES)
        self._lock = threading.Lock()
        self._is_closed = False
        self._made: dict[Purpose, SecureConnection] = {}

    def accept(self, purpose: Purpose, timeout_s: float) -> SecureConnection:
        """Still listens for the others. Raises ``LinkTimeoutError`` after closing all links."""
        self._accept_until([purpose], timeout_s)
        return self._made[purpose]

    def accept_all(self, timeout_s: float) -> dict[Purpose, SecureConnection]:
        """Raises ``LinkTimeoutError`` after closing all links."""
        self._accept_until([purpose for purpose, _ in self._expected.values()], timeout_s)
        self.close()
        return self._made

    def close(self) -> None:
        """Links that were returned stay open."""
        with self._lock:
            self._is_closed = True
        self._socket.close()

    def _accept_until(self, wanted: Collection[Purpose], timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        try:
            while missing := [purpose for purpose in wanted if purpose not in self._made]:
                if time.monotonic() >= deadline_s:
                    names = " and no ".join(missing)
                    raise LinkTimeoutError(f"no {names} link came within {timeout_s:g} s")
                self._begin_handshake()
        except BaseException:
            self.close()
            for link in self._made.values():
                link.close()
            raise

    def _begin_handshake(self) -> None:
        try:
            plain, _ = self._socket.accept()
        except TimeoutError:
            return
        except OSError:  # it has gone again, or there are too many open files
            time.sleep(POLL_S)
            return
        if not self._handshakes.acquire(blocking=False):
            plain.close()
            return
        threading.Thread(target=self._shake_hands, args=(plain,), daemon=True).start()

    def _shake_hands(self, plain: socket.socket) -> None:
        plain.settimeout(HANDSHAKE_TIMEOUT_S)
        try:
            with plain:
                connection = self._context.wrap_socket(plain, server_side=True)
            with self._lock:
                problem = self._add(connection)
            if problem:
                connection.close()
        except OSError as error:
            problem = str(error)
        finally:
            self._handshakes.release()
        if problem:
            log.warning("a connection to this stage was closed: %s", problem)

    def _add(self, connection: ssl.SSLSocket) -> str:
        purpose, peer = self._expected.get(connection.selected_alpn_protocol() or "", (None, None))
        if self._is_closed or purpose is None or connection.getpeercert(binary_form=True) != peer:
            return "this link is not its"
        made = self._made.get(purpose)
        if made is not None and not made.is_left:
            return f"the {purpose} link is there already"
        link = SecureConnection(connection, stall_timeout_s=self._stall_timeout_s)
        if link.is_left:  # it did not wait until it was accepted, and may dial again
            return "the other end has left"
        if made is not None:
            made.close()
        connection.send(ACCEPTED)
        self._made[purpose] = link
        return ""
