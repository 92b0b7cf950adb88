"""A relay in front of a stage's address that holds what either end sends for some time, as a
network between two hosts would:

    python -m benchmarks.delayed_link 127.0.0.1:4444 0.2      prints the address that it listens at

It stands for a network namespace with netem, which not every kernel has. Its own threads cost some
tens of microseconds more, which a delay of 0 shows.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

CHUNK_BYTES = 1 << 16


@contextmanager
def delayed_link(address: str, delay_ms: float) -> Iterator[str]:
    """Yields the address of a relay to ``address``, which is a process of its own."""
    command = [sys.executable, "-m", "benchmarks.delayed_link", address, str(delay_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as relay:
        assert relay.stdout is not None
        try:
            yield relay.stdout.readline().strip()
        finally:
            relay.kill()


def main(address: str, delay_ms: str) -> None:
    host, _, port = address.rpartition(":")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"127.0.0.1:{listener.getsockname()[1]}", flush=True)
        while True:
            near, _ = listener.accept()
            far = socket.create_connection((host, int(port)))
            for one in (near, far):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            relay(near, far, float(delay_ms) / 1000)
            relay(far, near, float(delay_ms) / 1000)


def relay(source: socket.socket, target: socket.socket, delay_s: float) -> None:
    """Passes on what ``source`` sends, ``delay_s`` after it came, and then its end."""
    held: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def receive() -> None:
        data = b"any"
        while data:
            try:
                data = source.recv(CHUNK_BYTES)
            except OSError:
                data = b""
            held.put((time.perf_counter() + delay_s, data))

    def send() -> None:
        with contextlib.suppress(OSError):
            while True:
                due_s, data = held.get()
                time.sleep(max(0.0, due_s - time.perf_counter()))
                if not data:
                    target.shutdown(socket.SHUT_WR)
                    return
                target.sendall(data)

    for part in (receive, send):
        threading.Thread(target=part, daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
