"""Checks a request's Host and HTTPS; compression and Content-Security-Policy of Django's pages.

A web page can have its own name resolve to this machine's address (DNS rebinding), and would then
have the same origin as everything here. The browser still sends the page's name as the Host, which
is none of ours.

The policy keeps a page that shows foreign text, a model's name or an answer, from running its
scripts and from sending anything to another host, even where an escape was forgotten;
docs/operating/security.md lists the permitted sources, with the reasons. ``X-Forwarded-Proto``
reports HTTPS, and only from a trusted proxy: any client can write the header.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import socket
from functools import lru_cache
from http import HTTPStatus
from urllib.parse import urlsplit

import psutil
from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseBadRequest,
    HttpResponsePermanentRedirect,
)
from django.http import request as django_request
from django.http.request import split_domain_port, validate_host
from django.http.response import HttpResponseBase
from django.middleware.gzip import GZipMiddleware
from django.utils.deprecation import MiddlewareMixin

from helexa_site.addresses import ANY_ADDRESS, is_loopback, parse_address
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
    """``host_header``: empty where a request had none, which every browser sends."""
    if not host_header:
        return True
    name, _port = split_domain_port(host_header)
    return bool(name) and validate_host(name, allowed_hosts(config))


def log_refused_host(host_header: str) -> None:
    words = "a request for the host %r is refused; where it is this server's, add it to %s"
    logger.warning(words, host_header, "HELEXA_ALLOWED_HOSTS")


@lru_cache(maxsize=8)
def allowed_hosts(config: Config) -> frozenset[str]:
    """In the form of Django's ALLOWED_HOSTS; without addresses that the machine gets later."""
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
    def process_request(self, request: HttpRequest) -> HttpResponse | None:
        try:
            request.get_host()
        except DisallowedHost:
            log_refused_host(request.META.get("HTTP_HOST", ""))
            return HttpResponseBadRequest(
                "This server has no such name.\n", content_type="text/plain"
            )
        return None


COMPRESSED_TYPES = (
    *("text/", "application/json", "application/javascript", "application/problem+json"),
    *("application/vnd.oai.openapi", "image/svg+xml"),
)
"""Fonts and images are compressed already."""


class CompressionMiddleware(GZipMiddleware):
    """Compresses whole bodies alone: a range of a file counts bytes of the file."""

    def process_response(
        self, request: HttpRequest, response: HttpResponseBase
    ) -> HttpResponseBase:
        is_text = response.headers.get("Content-Type", "").startswith(COMPRESSED_TYPES)
        if not is_text or response.status_code == HTTPStatus.PARTIAL_CONTENT:
            return response
        return super().process_response(request, response)


HEADER = "Content-Security-Policy"
SELF = "'self'"
POLICY: dict[str, tuple[str, ...]] = {
    "default-src": (SELF,),
    # django-unfold's Alpine compiles the expressions of its attributes.
    "script-src": (SELF, "'unsafe-eval'"),
    # Widths of bars, charts' measurements, and htmx' style sheet for its indicator.
    "style-src": (SELF, "'unsafe-inline'"),
    # Images of the playground's requests, and icons inside style sheets.
    "img-src": (SELF, "data:"),
    "object-src": ("'none'",),
    "base-uri": ("'none'",),
    "form-action": (SELF,),
    "frame-src": ("'none'",),
    "frame-ancestors": ("'none'",),
}


def policy_text() -> str:
    return "; ".join(f"{directive} {' '.join(sources)}" for directive, sources in POLICY.items())


class ContentSecurityMiddleware(MiddlewareMixin):
    """The first of all, so that refusals by others have it too."""

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        response.headers.setdefault(HEADER, policy_text())
        return response


FORWARDED_PROTO = "HTTP_X_FORWARDED_PROTO"
"""Django reads the scheme from it where it is left: ``SECURE_PROXY_SSL_HEADER``."""


class HttpsMiddleware(MiddlewareMixin):
    def process_request(self, request: HttpRequest) -> HttpResponse | None:
        peer = parse_address(request.META.get("REMOTE_ADDR", ""))  # a Unix socket's peer has none
        if peer is None or not any(peer in network for network in settings.CONFIG.trusted_proxies):
            request.META.pop(FORWARDED_PROTO, None)
        was_http = FORWARDED_PROTO in request.META and not request.is_secure()
        if not was_http or not settings.CONFIG.redirects_to_https:
            return None
        url = f"https://{request.get_host()}{request.get_full_path()}"
        return HttpResponsePermanentRedirect(url, preserve_request=True)
