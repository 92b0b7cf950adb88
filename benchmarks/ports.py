"""Ports for servers of measurements and tests."""

from __future__ import annotations

import contextlib
import random
import socket

HOST = "127.0.0.1"
PORTS = range(20_000, 32_768)
"""Below the ephemeral ports of kernels: Linux' from 32768 on, others' from 49152 on."""


def free_port() -> int:
    """Not ephemeral: another connection might get such a port before the server listens."""
    choice = random.SystemRandom()  # processes may have equal seeds
    while True:
        port = choice.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port
