"""TLS in front of a Redis that was built without it, for tests of its clients."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def tls_front(chain: Path, key: Path, redis_socket: Path) -> Iterator[int]:
    """A port of loopback, which hands on what it reads to the socket of a Redis."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as to_redis:
                client = context.wrap_socket(self.request, server_side=True)
                to_redis.connect(str(redis_socket))
                back = threading.Thread(target=_copy, args=(to_redis, client), daemon=True)
                back.start()
                _copy(client, to_redis)
                back.join()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def _copy(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := one.recv(65536):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)
