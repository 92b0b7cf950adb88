"""Whether a port can be listened on."""

from __future__ import annotations

import socket


def try_to_listen(host: str, port: int) -> OSError | None:
    """The reason why no process can listen there now; ``None``: one can."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError as error:
        return error
    return None
