"""The site's own pages and static files: the API reference, errors, settings, times and labels."""

from __future__ import annotations

import gzip
import html
import re
from typing import Any
from unittest.mock import Mock

import pytest
from django.core.exceptions import BadRequest
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

from helexa_site import pages, urls
from helexa_site.api_reference import calls
from helexa_site.middleware import HEADER, POLICY, policy_text
from inference.settings.table import SETTINGS
from inference.wire.openapi import document
from tests.cases import each_case
from tests.metering.callers import person, staff

pytestmark = pytest.mark.django_db


def test_strangers_find_the_whole_reference_from_the_front() -> None:
    client = Client()
    front = client.get("/", follow=True)
    assert 'href="/docs"' in front.text and "no-cache" in client.get("/")["Cache-Control"]
    for reader, where in ((staff(), "/admin/"), (person("mia"), "/playground/")):
        assert reader.get("/")["Location"] == where
    assert client.post("/docs").status_code == 405
    page = client.get("/docs/").text
    assert all(address in html.unescape(page) for address in document()["paths"])
    assert 'base_url="http://testserver/v1"' in page
    loaded = re.findall(r'<(?:script|link|img|iframe)[^>]*?(?:src|href)="([^"]*)"', page)
    assert loaded and [one for one in loaded if "//" in one] == [], "it needs no other host"
    targets = set(re.findall(r'href="#([^"]+)"', page))
    assert targets and targets <= set(re.findall(r'id="([^"]+)"', page))
    (chat,) = (call for call in calls() if call.path == "/v1/chat/completions")
    assert chat.tables[0][0] == "Fields" and len(chat.tables) > 1
    rows = {row.name: row for row in chat.tables[0][1]}
    assert (rows["messages"].types, rows["messages"].verdict) == ("array", "honoured")
    assert (rows["web_search_options"].types, rows["web_search_options"].verdict) == ("", "refused")


PAGE = "text/html,application/xhtml+xml,*/*;q=0.8"


def failing(_request: HttpRequest, error: Exception) -> HttpResponse:
    raise error


urlpatterns = [
    *urls.urlpatterns,
    path("bad", failing, {"error": BadRequest("no")}),
    path("broken", failing, {"error": RuntimeError("a secret")}),
]
handler400, handler404, handler500 = urls.handler400, urls.handler404, urls.handler500


@pytest.mark.urls(__name__)
@each_case(
    ("address", "status", "words"),
    [
        ("/bad", 400, "This request cannot be read"),
        ("/nowhere", 404, "There is nothing at this address"),
        ("/broken", 500, "The server failed."),
    ],
)
def test_a_refusal_and_a_failure(
    caplog: pytest.LogCaptureFixture, monkeypatch: Any, address: str, status: int, words: str
) -> None:
    client = Client(raise_request_exception=False)
    response = client.get(address, HTTP_ACCEPT=PAGE)
    assert response.status_code == status and words in response.text
    assert response["content-type"].startswith("text/html") and "x-request-id" not in response
    assert 'class="hx-skip"' in response.text and "a secret" not in response.text
    if status == 500:
        number = response.text.partition("under this number: ")[2][:32]
        assert len(number) == 32 and f"GET /broken failed: {number}" in caplog.text
    response = client.get(address, HTTP_ACCEPT="application/json")
    assert (response.status_code, response["content-type"]) == (status, "application/json")
    assert "a secret" not in response.text
    if status == 404:
        meant = client.post("/openai/v1/chat/completions", HTTP_ACCEPT="*/*").json()["error"]
        assert meant["code"] == "unknown_url"
        words_end = "Did you mean /v1/chat/completions? What there is: /docs."
        assert meant["message"].endswith(words_end)
    monkeypatch.setattr(pages, "render_page", Mock(side_effect=OperationalError("away")))
    response = client.get(address, HTTP_ACCEPT=PAGE)
    assert response.status_code == status
    assert words in response.text and "<h1>" in response.text, "also without the database"


def test_every_setting_is_shown_to_superusers_and_no_secret(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {one.name: "sesame-and-long-enough" for one in SETTINGS if one.is_secret}
    environment["HELEXA_MAX_IMAGES"] = "37"
    environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = "https://me:sesame@traces.example"
    monkeypatch.setattr(pages, "ENVIRONMENT", environment)
    text = html.unescape(admin_client.get("/admin/settings/").text)
    for setting in SETTINGS:
        assert (f"<code>{setting.name}</code>" in text) is not setting.is_internal
        assert setting.is_internal or setting.kind.rule in text
    assert '<td class="hx-words">37</td>' in text
    assert "sesame" not in text and "set, and not shown" in text
    assert "https://me:***@traces.example" in text
    assert "](" not in text and "`" not in text, "Markdown"
    refused = staff().get("/admin/settings/", headers={"accept": PAGE})
    assert refused.status_code == 403 and "for people with other permissions" in refused.text
    assert person("mia").get("/admin/settings/").status_code == 302


def test_no_page_runs_a_script_that_stands_in_it_or_comes_from_elsewhere() -> None:
    for address in ("/login/", "/nowhere", "/static/helexa/pages.css"):
        for host in ("localhost", "evil.example"):
            response = Client(headers={"host": host}).get(address)
            response.close()
            assert response.headers[HEADER] == policy_text()
    assert set(POLICY["script-src"]) == {"'self'", "'unsafe-eval'"}
    assert POLICY["default-src"] == ("'self'",), "connections among others"
    for directive in ("object-src", "base-uri", "frame-src", "frame-ancestors"):
        assert POLICY[directive] == ("'none'",)


def test_static_files_come_compressed_where_they_are_text() -> None:
    client = Client(headers={"accept-encoding": "gzip, br"})
    plain = b"".join(Client().get("/static/helexa/pages.css"))  # type: ignore[arg-type]
    response = client.get("/static/helexa/pages.css")
    assert response["Content-Encoding"] == "gzip" and "Accept-Encoding" in response["Vary"]
    packed = b"".join(response)  # type: ignore[arg-type]
    assert gzip.decompress(packed) == plain and len(packed) < len(plain) / 2
    font = client.get("/static/unfold/fonts/inter/Inter-Regular.woff2")
    part = client.get("/static/helexa/pages.css", headers={"range": "bytes=0-9"})
    for whole, status in ((font, 200), (part, 206), (Client().get("/docs"), 200)):
        assert (whole.status_code, "Content-Encoding" in whole) == (status, False)
    assert client.get("/docs")["Content-Encoding"] == "gzip"
