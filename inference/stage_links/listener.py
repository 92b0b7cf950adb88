"""The end of links that waits for them: a listening socket that exists until all expected links are
made, or until time is up.

    anyone ── connects ──▶ handshake ── certificate and purpose expected? ──▶ a link
                              └── too slow, too many, not expected: closed, nothing is read

One thread serves all handshakes, so that a stranger costs a socket and a little CPU time. Of too
many at once the oldest is closed: slow strangers do not keep an expected end out.
"""

from __future__ import annotations

import logging
import selectors
import socket
import ssl
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from inference.protocol.load import LinkIdentity
from inference.stage_links.connection import STALL_TIMEOUT_S, SecureConnection
from inference.stage_links.errors import LinkTimeoutError
from inference.stage_links.identities import (
    Purpose,
    certificate_der,
    protocol_of,
    server_context,
)

log = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S = 5.0
MAX_HANDSHAKES = 32
MAX_LOGGED = 10
"""The most lines about connections that one listener closes: strangers do not fill the log."""
PAUSE_S = 0.05
ACCEPTED = b"\x01"
"""A listener's first bytes on a link that it has accepted."""


@dataclass(frozen=True, slots=True)
class Handshake:
    connection: ssl.SSLSocket
    deadline_s: float


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
        self._socket.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._handshakes: dict[socket.socket, Handshake] = {}
        """The oldest first."""
        self._made: dict[Purpose, SecureConnection] = {}
        self._num_closed = 0

    @property
    def port(self) -> int:
        port: int = self._socket.getsockname()[1]
        return port

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

    def _accept_until(self, wanted: Collection[Purpose], timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        try:
            while not self._made.keys() >= set(wanted):
                if (left_s := deadline_s - time.monotonic()) <= 0:
                    raise LinkTimeoutError(self._missing(wanted, timeout_s))
                self._wait(left_s)
        except BaseException:
            for link in self._made.values():
                link.close()
            self.close()
            raise

    def close(self) -> None:
        """Listens no more. Links that were returned stay."""
        for handshake in self._handshakes.values():
            handshake.connection.close()
        self._handshakes.clear()
        self._socket.close()
        self._selector.close()

    def _wait(self, left_s: float) -> None:
        now_s = time.monotonic()
        for handshake in [one for one in self._handshakes.values() if one.deadline_s <= now_s]:
            self._drop(handshake, "it was too slow")
        oldest = next(iter(self._handshakes.values()), None)
        if oldest is not None:
            left_s = min(left_s, oldest.deadline_s - now_s)
        for key, _ in self._selector.select(max(0.0, left_s)):
            if key.fileobj is self._socket:
                self._begin()
            elif (waiting := self._handshakes.get(key.data)) is not None:
                self._continue(waiting)

    def _begin(self) -> None:
        try:
            plain, _ = self._socket.accept()
        except OSError:  # it has gone again, or there are too many open files
            time.sleep(PAUSE_S)
            return
        plain.setblocking(False)
        try:
            connection = self._context.wrap_socket(
                plain, server_side=True, do_handshake_on_connect=False
            )
        except OSError:
            plain.close()
            return
        if len(self._handshakes) == MAX_HANDSHAKES:
            self._drop(next(iter(self._handshakes.values())), "there are too many")
        deadline_s = time.monotonic() + HANDSHAKE_TIMEOUT_S
        self._handshakes[connection] = Handshake(connection, deadline_s)
        self._selector.register(connection, selectors.EVENT_READ, connection)

    def _continue(self, handshake: Handshake) -> None:
        connection = handshake.connection
        try:
            connection.do_handshake()
            self._finish(handshake)
        except ssl.SSLWantReadError:
            self._selector.modify(connection, selectors.EVENT_READ, connection)
        except ssl.SSLWantWriteError:
            self._selector.modify(connection, selectors.EVENT_WRITE, connection)
        except OSError as error:
            self._drop(handshake, str(error))

    def _finish(self, handshake: Handshake) -> None:
        """Raises ``OSError`` where the other end has gone already."""
        connection = handshake.connection
        purpose, peer = self._expected.get(connection.selected_alpn_protocol() or "", (None, None))
        if purpose is None or connection.getpeercert(binary_form=True) != peer:
            self._drop(handshake, "this link is not its")
        elif (made := self._made.get(purpose)) is not None and not made.is_left:
            self._drop(handshake, f"the {purpose} link is there already")
        else:
            link = SecureConnection(connection, stall_timeout_s=self._stall_timeout_s)
            if link.is_left:  # it did not wait until it was accepted, and may dial again
                raise ConnectionResetError("the other end has left")
            if made is not None:
                made.close()
            connection.send(ACCEPTED)
            self._forget(handshake)
            self._made[purpose] = link

    def _drop(self, handshake: Handshake, why: str) -> None:
        self._num_closed += 1
        if self._num_closed <= MAX_LOGGED:
            log.warning("a connection to this stage was closed: %s", why)
        self._forget(handshake)
        handshake.connection.close()

    def _forget(self, handshake: Handshake) -> None:
        del self._handshakes[handshake.connection]
        self._selector.unregister(handshake.connection)

    def _missing(self, wanted: Collection[Purpose], timeout_s: float) -> str:
        missing = [name for name in wanted if name not in self._made]
        return f"no {' and no '.join(missing)} link came within {timeout_s:g} s"
