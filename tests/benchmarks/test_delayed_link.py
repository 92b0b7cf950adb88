"""The relay between two hosts: what passes is whole and in order, late, and its end comes too."""

from __future__ import annotations

import socket
import threading
import time

from benchmarks.delayed_link import delayed_link, relay

DELAY_MS = 50.0
DATA = bytes(range(256)) * 4096


def test_both_directions_whole_and_not_before_their_time() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        delayed_link(f"127.0.0.1:{listener.getsockname()[1]}", DELAY_MS) as address,
    ):
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))) as near:
            far, _ = listener.accept()
            with far:
                started_s = time.perf_counter()
                far.sendall(b"a")
                assert near.recv(1) == b"a"
                assert time.perf_counter() - started_s >= DELAY_MS / 1000
                sending = threading.Thread(target=_send_all, args=(near,))
                sending.start()
                received = b"".join(iter(lambda: far.recv(1 << 16), b""))
                sending.join()
                assert received == DATA


def test_the_end_of_one_side_reaches_the_other() -> None:
    near, near_end = socket.socketpair()
    far, far_end = socket.socketpair()
    with near, near_end, far, far_end:
        relay(near_end, far_end, 0.0)
        near.close()
        assert far.recv(1) == b""


def _send_all(near: socket.socket) -> None:
    near.sendall(DATA)
    near.shutdown(socket.SHUT_WR)
