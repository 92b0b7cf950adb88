"""The port that a server gets is free, and stays so until the server listens."""

from __future__ import annotations

import socket

import pytest

from benchmarks import ports


def test_one_that_is_taken_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    taken_port, other_port = ports.free_port(), ports.free_port()
    monkeypatch.setattr(ports, "PORTS", [taken_port, other_port])
    with socket.create_server((ports.HOST, taken_port)):
        assert {ports.free_port() for _ in range(20)} == {other_port}


def test_a_connection_gets_none_of_them() -> None:
    with (
        socket.create_server((ports.HOST, 0)) as server,
        socket.create_connection(server.getsockname()) as connection,
    ):
        assert server.getsockname()[1] not in ports.PORTS
        assert connection.getsockname()[1] not in ports.PORTS
