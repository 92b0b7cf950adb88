"""Finds the addresses at which other machines reach this one."""

from __future__ import annotations

import ipaddress
import socket

ANY_ADDRESS = frozenset({"0.0.0.0", "::", ""})
SOMEWHERE_ELSE = ("192.0.2.1", 9)
"""An address of documentation: nothing is sent there."""


def reached_at(host: str) -> list[str]:
    """What a server that listens on ``host`` is reached at from elsewhere, the best first; itself,
    unless it listens on all addresses; empty where this machine has no network."""
    if host not in ANY_ADDRESS:
        return [host]
    import psutil  # with the other requirements

    stats = psutil.net_if_stats()
    found = [
        address.address
        for interface, addresses in psutil.net_if_addrs().items()
        if interface in stats and stats[interface].isup
        for address in addresses
        if address.family == socket.AF_INET and _is_of_a_network(address.address)
    ]
    first = _outgoing_address()
    return sorted(found, key=lambda address: address != first)


def _is_of_a_network(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    return not (parsed.is_loopback or parsed.is_link_local)


def _outgoing_address() -> str | None:
    """The one that the way to other networks begins with."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(SOMEWHERE_ELSE)
        except OSError:
            return None
        address: str = probe.getsockname()[0]
        return address
