"""The admin's style sheets and scripts, as a fresh machine serves them."""

from __future__ import annotations

import gzip
import re
import warnings
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.templatetags.static import static
from django.test import Client, RequestFactory
from whitenoise.middleware import WhiteNoiseMiddleware

MAX_DASHBOARD_BYTES = 300_000
"""Fonts are not in it: they are compressed themselves."""


def _not_static(request: HttpRequest) -> HttpResponse:
    return HttpResponse(status=404)


def test_they_come_from_their_packages_and_nothing_is_missed(settings: Any) -> None:
    settings.WHITENOISE_AUTOREFRESH = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        middleware = WhiteNoiseMiddleware(_not_static)
    response = middleware(RequestFactory().get("/static/admin/css/base.css"))
    assert response.status_code == 200
    assert response.headers["Content-Type"].startswith("text/css")


def test_an_address_has_a_digest_and_is_kept_long() -> None:
    address = static("helexa/pages.css")
    assert re.fullmatch(r"/static/helexa/pages\.css\?v=[0-9a-f]{12}", address)
    assert "immutable" in Client().get(address)["Cache-Control"]
    for other in ("/static/helexa/pages.css", "/static/helexa/pages.css?v=0123456789ab"):
        assert Client().get(other)["Cache-Control"] == "max-age=60, public"


@pytest.mark.django_db
def test_the_dashboard_is_small(admin_client: Client) -> None:
    """With its scripts and style sheets, as a browser gets them: 1.27 MB before."""
    client = Client(headers={"accept-encoding": "gzip, br"})
    client.cookies = admin_client.cookies
    page = admin_client.get("/admin/").text
    addresses = set(re.findall(r'(?:src|href)="(/static/[^"]+)"', page))
    assert any("htmx" in one for one in addresses)
    sizes = [len(client.get("/admin/").content)]
    sizes += [len(b"".join(client.get(one))) for one in addresses]  # type: ignore[arg-type]
    assert sum(sizes) <= MAX_DASHBOARD_BYTES


def test_text_is_compressed_and_fonts_are_not() -> None:
    client = Client(headers={"accept-encoding": "gzip, br"})
    plain = b"".join(Client().get("/static/helexa/pages.css"))  # type: ignore[arg-type]
    response = client.get("/static/helexa/pages.css")
    assert response["Content-Encoding"] == "gzip" and "Accept-Encoding" in response["Vary"]
    packed = b"".join(response)  # type: ignore[arg-type]
    assert gzip.decompress(packed) == plain and len(packed) < len(plain) / 2
    font = client.get("/static/unfold/fonts/inter/Inter-Regular.woff2")
    assert font.status_code == 200 and "Content-Encoding" not in font
    part = client.get("/static/helexa/pages.css", headers={"range": "bytes=0-9"})
    assert part.status_code == 206 and "Content-Encoding" not in part
    assert "Content-Encoding" not in Client().get("/docs")
    assert client.get("/docs")["Content-Encoding"] == "gzip"
