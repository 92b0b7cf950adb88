"""Requests that came by HTTPS to a proxy before this server, which itself speaks HTTP.

``X-Forwarded-Proto`` reports HTTPS, and only from a trusted proxy: any client can write the header.
Requests of this machine's commands come directly and stay on HTTP.
"""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, HttpResponsePermanentRedirect
from django.utils.deprecation import MiddlewareMixin

from helexa_site.config import Config
from helexa_site.settings import CONFIG
from helexa_site.web.client_address import parse_address

FORWARDED_PROTO = "HTTP_X_FORWARDED_PROTO"
"""Django reads the scheme from it where it is left: ``SECURE_PROXY_SSL_HEADER``."""


class HttpsMiddleware(MiddlewareMixin):
    def process_request(self, request: HttpRequest) -> HttpResponse | None:
        if not _is_of_a_trusted_proxy(request, CONFIG):
            request.META.pop(FORWARDED_PROTO, None)
        was_http = FORWARDED_PROTO in request.META and not request.is_secure()
        if not was_http or not CONFIG.redirects_to_https:
            return None
        url = f"https://{request.get_host()}{request.get_full_path()}"
        return HttpResponsePermanentRedirect(url, preserve_request=True)


def _is_of_a_trusted_proxy(request: HttpRequest, config: Config) -> bool:
    peer = parse_address(request.META.get("REMOTE_ADDR", ""))  # a Unix socket's peer has none
    return peer is not None and any(peer in network for network in config.trusted_proxies)
