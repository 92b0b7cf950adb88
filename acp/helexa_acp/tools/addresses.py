"""Which hosts and addresses the fetch tool may ask. Pure but for asking the resolver."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence

from helexa_acp.errors import ToolError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_allowed_host(host: str, allowed: Sequence[str]) -> bool:
    """Whether the list has its name, a ``*.`` of what it is part of, or ``*``."""
    return any(
        entry in ("*", host) or (entry.startswith("*.") and host.endswith(entry[1:]))
        for entry in allowed
    )


def is_allowed_address(address: Address, *, is_named: bool) -> bool:
    """``is_named``: the configuration names this very host, which may be one of the operator's own
    network. Link-local addresses are never asked: clouds hand out credentials there."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_allowed_address(address.ipv4_mapped, is_named=is_named)
        if address.sixtofour is not None or address.teredo is not None:
            return False
    if address.is_link_local or address.is_multicast or address.is_unspecified:
        return False
    return is_named or address.is_global


async def checked_address(host: str, port: int, allowed: Sequence[str]) -> Address:
    """The address to connect to: every one that the host has must be allowed, and the one that was
    checked is the one that is asked. Raises ToolError."""
    if not is_allowed_host(host, allowed):
        raise ToolError(f"{host} is not one of fetch_hosts in the configuration")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ToolError(f"{host} has no address: {error}") from None
    addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
    for address in addresses:
        if not is_allowed_address(address, is_named=host in allowed):
            raise ToolError(f"{host} is {address}, which is not a public address")
    if not addresses:
        raise ToolError(f"{host} has no address")
    return addresses[0]
