"""Addresses: where a server listens, where others reach it, and whose a request is.

``X-Forwarded-For`` grows to the right: each proxy adds its peer. Only additions of trusted proxies
count; the client may have written everything before them.

Standard library only at import: flags are checked before anything is installed.
"""

from __future__ import annotations

import ipaddress
import socket

from inference.settings.setting import Network

ANY_ADDRESS = frozenset({"0.0.0.0", "::", ""})
SOMEWHERE_ELSE = ("192.0.2.1", 9)
"""TEST-NET-1 (RFC 5737): connecting a UDP socket sends nothing."""
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
IPV6_CLIENT_BITS = 64
NO_ADDRESS = ipaddress.IPv6Address(0)
"""For peers without one, as on a Unix socket. All of them count as one."""


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def reachable_host(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)


def base_url(host: str, port: int) -> str:
    reachable = reachable_host(host)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


def shown_urls(host: str, port: int) -> list[str]:
    """The first one works from other machines where any does."""
    elsewhere = reached_at(host) if host in ANY_ADDRESS else []
    return [*(base_url(address, port) for address in elsewhere), base_url(host, port)]


def reached_at(host: str) -> list[str]:
    """The best first; empty where this machine has no network."""
    if host not in ANY_ADDRESS:
        return [host]
    import psutil  # with the other requirements

    stats = psutil.net_if_stats()
    found = []
    for interface, addresses in psutil.net_if_addrs().items():
        if interface in stats and stats[interface].isup:
            found += [one.address for one in addresses if one.family == socket.AF_INET]
    parsed = map(ipaddress.ip_address, found)
    usable = [str(one) for one in parsed if not (one.is_loopback or one.is_link_local)]
    first = _outgoing_address()
    return sorted(usable, key=lambda address: address != first)


def _outgoing_address() -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(SOMEWHERE_ELSE)
        except OSError:
            return None
        return str(probe.getsockname()[0])


def try_to_listen(host: str, port: int) -> OSError | None:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError as error:
        return error
    return None


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
    """Accepts a port, as some proxies write it."""
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
