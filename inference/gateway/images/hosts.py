"""Which addresses of images may be asked. Pure.

    https://host[:port]/… ─▶ is its host named? ─▶ what it resolves to ─▶ public, or named literally

A host that is named by a pattern must have a public address: the owner of a name can let it point
into the network that this gateway stands in.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

ALL = "*"
USUAL_PORTS = {"http": 80, "https": 443}
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
CARRIES_IPV4 = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("2002::/16"))
"""Addresses that a gateway on the way turns into others."""


class ImageAddressError(ValueError):
    """The message gives the reason to clients."""


@dataclass(frozen=True, slots=True)
class ImageAddress:
    scheme: str
    host: str
    port: int
    target: str
    """Path and query."""
    is_named: bool
    """Literally, by the operator: it may be in a private network."""

    @property
    def host_header(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == USUAL_PORTS[self.scheme] else f"{name}:{self.port}"


def image_address(url: str, hosts: Sequence[str]) -> ImageAddress:
    """``hosts``: those that the operator allows. Raises ``ImageAddressError``."""
    if any(ord(character) <= 0x20 or ord(character) == 0x7F for character in url):
        raise ImageAddressError("the address holds spaces or control characters")
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").encode("idna").decode(), parts.port
    except ValueError:
        raise ImageAddressError("the address is not understood") from None
    if parts.scheme not in USUAL_PORTS or not host:
        raise ImageAddressError("the address is not one of http or https")
    if parts.username is not None or parts.password is not None:
        raise ImageAddressError("the address holds a name or a password")
    usual = USUAL_PORTS[parts.scheme]
    is_named = _is_named(host, port or usual, usual, hosts)
    if not is_named and not (port in (None, usual) and _is_allowed(host, hosts)):
        raise ImageAddressError("images are not fetched from this host here")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return ImageAddress(
        scheme=parts.scheme,
        host=host,
        port=port or usual,
        target=_quoted(target),
        is_named=is_named,
    )


def _is_named(host: str, port: int, usual: int, hosts: Sequence[str]) -> bool:
    written = f"[{host}]" if ":" in host else host
    return f"{written}:{port}" in hosts or (port == usual and written in hosts)


def _is_allowed(host: str, hosts: Sequence[str]) -> bool:
    return any(one == ALL or (one.startswith("*.") and host.endswith(one[1:])) for one in hosts)


def _quoted(target: str) -> str:
    return "".join(
        character
        if character.isascii()
        else "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "replace"))
        for character in target
    )


def check_resolved(address: ImageAddress, resolved: Sequence[str]) -> None:
    """``resolved``: all that its name stands for. One that is not public refuses them all. Raises
    ``ImageAddressError``."""
    if not resolved:
        raise ImageAddressError("the host of the image is not known")
    if address.is_named:
        return
    if not all(_is_public(ipaddress.ip_address(one.split("%")[0])) for one in resolved):
        raise ImageAddressError("images are not fetched from this host here")


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return _is_public(address.ipv4_mapped)
        if any(address in network for network in CARRIES_IPV4):
            return False
    return address.is_global and not address.is_multicast
