"""Errors that no view answers, each in the format of its client."""

from __future__ import annotations

import pytest
from django.core.exceptions import BadRequest
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

from helexa_site import urls
from helexa_site.web import error_pages
from tests.cases import each_case


@each_case("accept", ["application/json", "*/*", ""])
def test_json_names_what_may_have_been_meant(accept: str) -> None:
    response = Client().post("/openai/v1/chat/completions", HTTP_ACCEPT=accept)
    assert (response.status_code, response["content-type"]) == (404, "application/json")
    error = response.json()["error"]
    assert error["code"] == "unknown_url"
    assert error["message"].endswith("Did you mean /v1/chat/completions? What there is: /docs.")


def test_a_browser_gets_a_page() -> None:
    response = Client().get("/nowhere", HTTP_ACCEPT="text/html,application/xhtml+xml,*/*;q=0.8")
    assert response.status_code == 404 and "x-request-id" not in response
    assert response["content-type"].startswith("text/html")
    page = response.content.decode()
    assert "There is nothing at this address" in page and 'href="/"' in page


PAGE = "text/html,application/xhtml+xml,*/*;q=0.8"


def bad(_request: HttpRequest) -> HttpResponse:
    raise BadRequest("no")


def broken(_request: HttpRequest) -> HttpResponse:
    raise RuntimeError("a secret")


def away(_request: HttpRequest) -> HttpResponse:
    raise OperationalError("the database is away")


urlpatterns = [*urls.urlpatterns, path("bad", bad), path("broken", broken), path("away", away)]
handler400, handler500 = urls.handler400, urls.handler500


@pytest.mark.urls(__name__)
@each_case(
    ("address", "status", "words"),
    [("/bad", 400, "This request cannot be read"), ("/broken", 500, "The server failed.")],
)
def test_a_refusal_and_a_failure(address: str, status: int, words: str) -> None:
    client = Client(raise_request_exception=False)
    response = client.get(address, HTTP_ACCEPT=PAGE)
    page = response.content.decode()
    assert response.status_code == status and words in page
    assert 'class="hx-skip"' in page and "a secret" not in page
    response = client.get(address, HTTP_ACCEPT="application/json")
    assert (response.status_code, response["content-type"]) == (status, "application/json")
    assert "a secret" not in response.content.decode()


@pytest.mark.urls(__name__)
def test_the_failure_has_a_number_that_the_log_has(caplog: pytest.LogCaptureFixture) -> None:
    page = Client(raise_request_exception=False).get("/broken", HTTP_ACCEPT=PAGE).content.decode()
    number = page.partition("under this number: ")[2][:32]
    assert len(number) == 32 and f"GET /broken failed: {number}" in caplog.text


@pytest.mark.urls(__name__)
def test_a_database_that_is_away_leaves_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    def render(*_args: object, **_options: object) -> HttpResponse:
        raise OperationalError("the database is away")

    monkeypatch.setattr(error_pages, "render_page", render)
    response = Client(raise_request_exception=False).get("/away", HTTP_ACCEPT=PAGE)
    assert response.status_code == 500
    assert "<h1>Server error</h1>" in response.content.decode()
