"""A real Redis for a test run, as ``serve`` configures one, and one that a test may do harm to."""

from __future__ import annotations

import contextlib
import signal
import socket
import socketserver
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from helexa_site.bootstrap.guardian import Guardian
from helexa_site.bootstrap.redis_server import (
    PRIVATE,
    PrivateRedis,
    configure_private_redis,
    discard_private_redis,
    wait_for_redis,
)


class MortalRedis:
    """One that a test stops, kills and starts again. Killed, it has lost what it held."""

    def __init__(self, configured: PrivateRedis, guardian: Guardian, log: Path) -> None:
        self.url = configured.url
        self._command = configured.command
        self._guardian = guardian
        self._log = log
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._guardian.watch(self._process.pid)
        wait_for_redis(self.url, is_alive=lambda: self._process.poll() is None)

    def suspend(self) -> None:
        """It answers no client; the kernel still accepts connections for it."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def url_at(self, port: int) -> str:
        """Its URL on loopback, where it listens there as well."""
        password = self.url.partition("@")[0].removeprefix("unix://:")
        return f"redis://:{password}@127.0.0.1:{port}/0"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(60)
        self._guardian.release(self._process.pid)


@contextlib.contextmanager
def mortal_redis(run_dir: Path, *, port: int | None = None) -> Iterator[MortalRedis]:
    """It dies with this process, even when that is killed. ``port``: where it listens on loopback
    as well, for hosts that were invited."""
    listening = PRIVATE if port is None else ("bind 127.0.0.1", f"port {port}")
    configured = configure_private_redis(run_dir, listening=listening)
    with Guardian() as guardian:
        server = MortalRedis(configured, guardian, run_dir / "redis.log")
        try:
            yield server
        finally:
            server.kill()
            discard_private_redis(configured, run_dir)


@contextlib.contextmanager
def running_redis(run_dir: Path) -> Iterator[str]:
    """Its URL."""
    with mortal_redis(run_dir) as server:
        yield server.url


@contextlib.contextmanager
def tls_front(chain: Path, key: Path, redis_socket: Path) -> Iterator[int]:
    """TLS in front of a Redis that was built without it. A port of loopback, which hands on what it
    reads to that socket."""
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
