"""A path that nobody knows is answered as its client can read it."""

from __future__ import annotations

import pytest
from django.test import Client


@pytest.mark.parametrize("accept", ["application/json", "*/*", ""])
def test_json_names_what_may_have_been_meant(accept: str) -> None:
    response = Client().post("/openai/v1/chat/completions", HTTP_ACCEPT=accept)
    assert (response.status_code, response["content-type"]) == (404, "application/json")
    error = response.json()["error"]
    assert error["code"] == "unknown_url"
    assert error["message"].endswith("Did you mean /v1/chat/completions? What there is: /docs.")


def test_a_browser_gets_a_page() -> None:
    response = Client().get("/nowhere", HTTP_ACCEPT="text/html,application/xhtml+xml,*/*;q=0.8")
    assert response.status_code == 404
    assert response["content-type"].startswith("text/html")
    page = response.content.decode()
    assert "There is nothing at this address" in page and 'href="/"' in page
