"""The names by which a request may address this server in its Host header.

A web page can have its own name resolve to this machine's address (DNS rebinding), and would then
have the same origin as everything here. The browser still sends the page's name as the Host, which
is none of ours.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import socket
from functools import lru_cache
from urllib.parse import urlsplit

import psutil
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest
from django.http import request as django_request
from django.http.request import split_domain_port, validate_host
from django.utils.deprecation import MiddlewareMixin

from helexa_site.bootstrap.arguments import is_loopback
from helexa_site.bootstrap.sharing import ANY_ADDRESS
from helexa_site.config import Config

logger = logging.getLogger(__name__)

# Django allows no underscore, which names of containers and compose services have. It has no
# setting for this: every reader of a Host, its own pages included, uses this expression.
django_request.host_validation_re = re.compile(
    r"([a-z0-9._-]+|\[[a-f0-9]*:[a-f0-9.:]+\])(?::([0-9]+))?"
)

LOOPBACK_NAMES = frozenset({"localhost", ".localhost", "127.0.0.1", "[::1]"})
"""A leading dot stands for all names under it, as in Django's ALLOWED_HOSTS."""


def host_is_allowed(config: Config, host_header: str) -> bool:
    """``host_header``: name or address, with or without a port; empty where a request had none,
    which every browser sends."""
    if not host_header:
        return True
    name, _port = split_domain_port(host_header)
    return bool(name) and validate_host(name, allowed_hosts(config))


def log_refused_host(host_header: str) -> None:
    words = "a request for the host %r is refused; where it is this server's, add it to %s"
    logger.warning(words, host_header, "HELEXA_ALLOWED_HOSTS")


@lru_cache(maxsize=8)
def allowed_hosts(config: Config) -> frozenset[str]:
    """Names in the form of Django's ALLOWED_HOSTS, without addresses that the machine gets
    later."""
    names = LOOPBACK_NAMES | {name.lower().removesuffix(".") for name in config.allowed_hosts}
    if config.public_url is not None:
        names |= {split_domain_port(urlsplit(config.public_url).netloc)[0]}
    host = config.listen_host
    if host is None or is_loopback(host):
        return names | ({_as_host(host)} if host else set())
    own_name = socket.gethostname().lower().removesuffix(".")
    short_name = own_name.partition(".")[0]
    names |= {own_name, short_name, f"{short_name}.local"}
    if host in ANY_ADDRESS:
        return names | _own_addresses()
    return names | {_as_host(host)}


def _own_addresses() -> set[str]:
    return {
        _as_host(found.address.partition("%")[0])
        for interface in psutil.net_if_addrs().values()
        for found in interface
        if found.family in (socket.AF_INET, socket.AF_INET6)
    }


def _as_host(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address.lower()
    return f"[{parsed}]" if parsed.version == 6 else str(parsed)


class HostMiddleware(MiddlewareMixin):
    """Django's own pages: its refusal, with our setting's name in the log."""

    def process_request(self, request: HttpRequest) -> HttpResponse | None:
        try:
            request.get_host()
        except DisallowedHost:
            log_refused_host(request.META.get("HTTP_HOST", ""))
            return HttpResponseBadRequest(
                "This server has no such name.\n", content_type="text/plain"
            )
        return None
