"""Compression, Content-Security-Policy and HTTPS of Django's pages.

The policy keeps a page that shows foreign text, a model's name or an answer, from running its
scripts and from sending anything to another host, even where an escape was forgotten;
docs/operating/security.md lists the permitted sources, with the reasons. ``X-Forwarded-Proto``
reports HTTPS, and only from a trusted proxy: any client can write the header.
"""

from __future__ import annotations

from http import HTTPStatus

from django.http import HttpRequest, HttpResponse, HttpResponsePermanentRedirect
from django.http.response import HttpResponseBase
from django.middleware.gzip import GZipMiddleware
from django.utils.deprecation import MiddlewareMixin

from helexa_site.settings import CONFIG
from helexa_site.web.client_address import parse_address

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
        if peer is None or not any(peer in network for network in CONFIG.trusted_proxies):
            request.META.pop(FORWARDED_PROTO, None)
        was_http = FORWARDED_PROTO in request.META and not request.is_secure()
        if not was_http or not CONFIG.redirects_to_https:
            return None
        url = f"https://{request.get_host()}{request.get_full_path()}"
        return HttpResponsePermanentRedirect(url, preserve_request=True)
