"""The end of a link that opens it."""

from __future__ import annotations

import socket
import ssl
import time

from inference.protocol.load import LinkIdentity
from inference.stage_links.connection import STALL_TIMEOUT_S, SecureConnection
from inference.stage_links.errors import LinkRefusedError, LinkTimeoutError
from inference.stage_links.identities import (
    Purpose,
    certificate_der,
    client_context,
    protocol_of,
)
from inference.stage_links.listener import ACCEPTED, HANDSHAKE_TIMEOUT_S

RETRY_INTERVAL_S = 0.2


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
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
            problem = error
        except ssl.SSLError as error:
            raise LinkRefusedError(f"{purpose} link to {where}: {error}") from error
        except OSError as error:
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
    """Raises ``OSError`` and ``LinkRefusedError``."""
    plain = socket.create_connection(address, timeout_s)
    try:
        connection = context.wrap_socket(plain)  # takes the plain one over
    except BaseException:
        plain.close()
        raise
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
