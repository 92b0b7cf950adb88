"""How many connections are served, by address and by file descriptors."""

from __future__ import annotations

import ipaddress
import logging
from dataclasses import dataclass

import pytest

from inference.descriptors import DescriptorMarks
from inference.gateway.server.clients import ClientConnections
from tests.cases import each_case

FEW = 20
"""A file descriptor of a process that has plenty."""


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


def _connections(clock: Clock | None = None, refused: list[str] | None = None) -> ClientConnections:
    return ClientConnections(
        max_per_address=2,
        trusted_proxies=(ipaddress.ip_network("10.0.0.0/8"),),
        marks=DescriptorMarks.of_limit(1024),
        on_refused=[].append if refused is None else refused.append,
        clock=clock or Clock(),
    )


def _codes(connections: ClientConnections, *hosts: str) -> list[str | None]:
    errors = [connections.admit(host, FEW) for host in hosts]
    return [None if error is None else error.code for error in errors]


def test_one_address_has_a_bound_and_others_their_own() -> None:
    connections = _connections()
    codes = _codes(connections, *3 * ["192.0.2.1"], "192.0.2.2", "::ffff:192.0.2.1")
    assert codes == [None, None, "too_many_connections", None, "too_many_connections"]
    for _ in range(3):
        connections.release("192.0.2.1")
    assert _codes(connections, "192.0.2.1") == [None]


def test_an_ipv6_client_has_a_network() -> None:
    hosts = ("2001:db8::1", "2001:db8::ffff", "2001:db8::2", "2001:db8:0:1::1")
    assert _codes(_connections(), *hosts) == [None, None, "too_many_connections", None]


@each_case("host", ["127.0.0.1", "::1", "10.1.2.3"])
def test_this_host_and_trusted_proxies_are_not_counted(host: str) -> None:
    assert _codes(_connections(), *5 * [host]) == 5 * [None]


@each_case(
    ("limit", "refuse_from", "stop_from"),
    [(128, 80, 96), (1024, 832, 896), (20_000, 19_808, 19_872)],
)
def test_descriptors_are_kept_back(limit: int, refuse_from: int, stop_from: int) -> None:
    marks = DescriptorMarks.of_limit(limit)
    assert (marks.refuse_from, marks.stop_from) == (refuse_from, stop_from)


def test_a_connection_in_the_reserve_is_refused_whoever_it_is_of() -> None:
    refused: list[str] = []
    connections = _connections(refused=refused)
    assert connections.admit("127.0.0.1", 831) is None
    error = connections.admit("127.0.0.1", 832)
    assert error is not None
    assert (error.status, error.code, error.retry_after_s) == (503, "overloaded", 2.0)
    assert refused == ["overloaded"]
    assert not connections.is_too_many(895)
    assert connections.is_too_many(896)


def test_the_log_reports_what_ran_out_and_not_with_every_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    connections = _connections(clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            connections.admit("127.0.0.1", 900)
        clock.now_s = 60.0
        connections.admit("127.0.0.1", 900)
    first, second = (record.getMessage() for record in caplog.records)
    assert "overloaded" in first and "file descriptor 900 of 1024" in first
    assert "and 99 more" in second
