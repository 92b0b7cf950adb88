"""The proxies that the environment names, and requests through them.

This machine and the hosts of NO_PROXY are asked directly. HTTP proxies are used; a proxy of another
kind is refused where a request would need it. Standard library only.
"""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit


class UnsupportedProxyError(OSError):
    pass


def open_url(request: urllib.request.Request, timeout: float) -> Any:
    """Raises ``OSError``, such as ``UnsupportedProxyError``, and ``HTTPException``."""
    proxy = proxy_for(request.full_url)
    handler = urllib.request.ProxyHandler({request.type: proxy} if proxy else {})
    return urllib.request.build_opener(handler).open(request, timeout=timeout)


def proxy_for(url: str) -> str | None:
    """``None``: connect directly. Raises ``UnsupportedProxyError``."""
    parts, proxies = urlsplit(url), urllib.request.getproxies()
    host, netloc = parts.hostname or "", parts.netloc.rpartition("@")[2]
    kind = parts.scheme if parts.scheme in proxies else "all"
    proxy = proxies.get(kind)
    names = [name.strip().lower() for name in proxies.get("no", "").split(",")]
    if proxy is None or urllib.request.proxy_bypass(netloc) or _is_direct(host, names):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not _is_http(proxy):
        variable = f"{kind}_proxy"
        variable = variable if os.environ.get(variable) else variable.upper()
        raise UnsupportedProxyError(
            f"{variable} names a proxy that is not supported ({proxy.partition(':')[0]}://…): name "
            f"an HTTP proxy like http://proxy:3128 in {parts.scheme}_proxy, or {host} in NO_PROXY"
        )
    return proxy


def _is_http(proxy: str) -> bool:
    try:
        parts = urlsplit(proxy)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _is_direct(host: str, names: Sequence[str]) -> bool:
    """The standard library reads no patterns and no networks in NO_PROXY."""
    if any(fnmatchcase(host, name) for name in ("localhost", "*.localhost", *names)):
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    is_here = address.is_loopback or address.is_unspecified
    return is_here or any(address in network for network in _networks(names))


def _networks(names: Sequence[str]) -> Iterator[IPv4Network | IPv6Network]:
    for name in names:
        with suppress(ValueError):
            yield ip_network(name.strip("[]"), strict=False)
