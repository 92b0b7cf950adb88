"""The HTTP clients of this process, with the environment's proxies, and streams of events.

Connections to this machine and the hosts of NO_PROXY are direct. HTTP proxies are used; a proxy of
another kind is refused where a request would need it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2

from helexa_acp import __version__
from helexa_acp.errors import ConfigError

TIMEOUT = httpx2.Timeout(600.0, connect=10.0)


def open_http(url: str, **options: Any) -> httpx2.AsyncClient:
    """A client for requests to ``url`` and below it. Raises ConfigError."""
    client = httpx2.AsyncClient(
        transport=httpx2.AsyncHTTPTransport(proxy=proxy_for(url)), timeout=TIMEOUT, **options
    )
    client.headers["User-Agent"] = f"helexa-acp/{__version__}"
    return client


async def event_data(response: httpx2.Response) -> AsyncIterator[str]:
    """The data of each event of a ``text/event-stream``."""
    data: list[str] = []
    async for line in response.aiter_lines():
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            yield "\n".join(data)
            data = []
    if data:
        yield "\n".join(data)


def proxy_for(url: str) -> str | None:
    """The proxy's URL; ``None``: a direct connection. Raises ConfigError."""
    parts, proxies = urlsplit(url), getproxies()
    host, netloc = parts.hostname or "", parts.netloc.rpartition("@")[2]
    kind = parts.scheme if parts.scheme in proxies else "all"
    proxy = proxies.get(kind)
    names = [name.strip().lower() for name in proxies.get("no", "").split(",")]
    if proxy is None or proxy_bypass(netloc) or _is_direct(host, names):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not _is_http(proxy):
        variable = f"{kind}_proxy"
        variable = variable if os.environ.get(variable) else variable.upper()
        raise ConfigError(
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
    """Whether it is this machine, or matches a pattern or a network in NO_PROXY, which the standard
    library does not support."""
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
