"""The Content-Security-Policy of Django's pages: the admin, our own pages and the API's documents.

A page that shows text of others, a model's name or an answer, can then run no script of theirs and
send nothing to another host, even where an escape was forgotten. docs/operating/security.md
lists the permitted sources, with the reasons.
"""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils.deprecation import MiddlewareMixin

HEADER = "Content-Security-Policy"
SELF = "'self'"
POLICY: dict[str, tuple[str, ...]] = {
    "default-src": (SELF,),
    # Alpine, which django-unfold brings, compiles the expressions of its attributes.
    "script-src": (SELF, "'unsafe-eval'"),
    # Widths of bars, what charts measure by, and the style sheet that htmx adds for its indicator.
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
