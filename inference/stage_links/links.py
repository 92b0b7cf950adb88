"""Makes the links of a stage: its host listens until all of them are made, the other ends dial.

    anyone ── connects ──▶ handshake ── certificate and purpose expected? ──▶ a link
                              └── too slow, too many, not expected: closed, nothing is read

Each handshake has a thread, so that a slow stranger keeps no expected end out.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Collection, Mapping

from inference.protocol.load import LinkIdentity
from inference.stage_links.connection import STALL_TIMEOUT_S, SecureConnection
from inference.stage_links.identities import (
    Purpose,
    certificate_der,
    client_context,
    protocol_of,
    server_context,
)

log = logging.getLogger(__name__)

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
    """The other end is not the one whose certificate the load job names. Trying again changes
    nothing."""


class LinkTimeoutError(StageLinkError):
    """Not all links were made in time."""


def address_in_words(host: str, port: int) -> str:
    """``10.0.0.5:7400``, ``[2001:db8::5]:7400``: as load specs have it."""
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
    """Opens a link to the stage with the certificate ``peer``, which may begin to listen later.
    Raises ``LinkRefusedError``, ``LinkTimeoutError`` and, for credentials that are none,
    ``ValueError``."""
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
        """Listens from now on. ``expected``: the certificate of each link's other end. Raises
        ``OSError`` where the address cannot be had, ``ValueError`` for credentials that are
        none."""
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
        """Returns the link of one expected purpose, and continues to listen for the others. Raises
        ``LinkTimeoutError``; then no link is left."""
        self._accept_until([purpose], timeout_s)
        return self._made[purpose]

    def accept_all(self, timeout_s: float) -> dict[Purpose, SecureConnection]:
        """Returns the link of each expected purpose, and listens no more. Raises
        ``LinkTimeoutError`` with the missing ones; then no link is left."""
        self._accept_until([purpose for purpose, _ in self._expected.values()], timeout_s)
        self.close()
        return self._made

    def close(self) -> None:
        """Listens no more. Links that were returned stay."""
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
        """Returns why the connection is none of the expected links, or an empty text. Raises
        ``OSError`` where the other end has gone already."""
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
