"""Ports for servers that measurements and tests start."""

from __future__ import annotations

import contextlib
import random
import socket

HOST = "127.0.0.1"
PORTS = range(20_000, 32_768)
"""Below those that a kernel gives out by itself: Linux from 32768 on, others from 49152 on."""


def free_port() -> int:
    """A loopback port that is free. A server may take seconds until it listens there: meanwhile no
    connection of another process gets this port, as it might get one that the kernel has chosen."""
    choice = random.SystemRandom()  # processes may have seeded theirs alike
    while True:
        port = choice.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port
