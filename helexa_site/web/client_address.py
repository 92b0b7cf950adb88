"""Determines a client's address, also behind proxies.

``X-Forwarded-For`` grows to the right: each proxy adds its peer. Only additions of trusted proxies
count; the client may have written everything before them.
"""

from __future__ import annotations

import ipaddress

from inference.settings.setting import Network

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
IPV6_CLIENT_BITS = 64
"""One client has a network of this prefix length, and any address in it."""
NO_ADDRESS = ipaddress.IPv6Address(0)
"""For peers without one, as on a Unix socket. All of them count as one."""


def client_address(peer: str, forwarded_for: str, trusted_proxies: tuple[Network, ...]) -> Address:
    """The first address from the right that is not a trusted proxy's. A proxy that forwarded a word
    that is no address counts as the client; where all are proxies, the leftmost one does."""
    address = parse_address(peer) or NO_ADDRESS
    for word in reversed(forwarded_for.split(",")):
        if not any(address in network for network in trusted_proxies):
            break
        forwarded = parse_address(word)
        if forwarded is None:
            break
        address = forwarded
    return address


def counted_address(address: Address) -> str:
    """Rate-limit key: the address, or the /64 network of an IPv6 client."""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    host_bits = address.max_prefixlen - IPV6_CLIENT_BITS
    return str(ipaddress.IPv6Address(int(address) >> host_bits << host_bits))


def parse_address(word: str) -> Address | None:
    """``None``: no address. With or without a port, as some proxies write it."""
    word = word.strip()
    if word.startswith("["):
        word = word[1:].partition("]")[0]
    elif word.count(":") == 1:
        word = word.partition(":")[0]
    try:
        address = ipaddress.ip_address(word)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        return address.ipv4_mapped
    return address
