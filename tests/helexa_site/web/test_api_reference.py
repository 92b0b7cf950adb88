"""The page of the API reference: complete, self-contained, and linked where readers look."""

from __future__ import annotations

import html
import re

import pytest
from django.test import Client

from helexa_site.web.api_reference import calls, reads
from inference.wire.openai.passed.request import ENDPOINTS
from inference.wire.openapi import CALLS, DIALECTS, document

pytestmark = pytest.mark.django_db


@pytest.fixture
def page() -> str:
    response = Client().get("/docs")
    assert response.status_code == 200
    return response.content.decode()


def test_it_has_every_path_and_field(page: str) -> None:
    text = html.unescape(page)
    for path in document()["paths"]:
        assert path in text
    for fields in DIALECTS.values():
        for field in fields.values():
            assert f"<code>{field.name}</code>" in text
            assert field.note in text


def test_a_first_request_is_there_in_three_languages(page: str) -> None:
    for words in ("curl http://testserver/v1", 'base_url="http://testserver/v1"', "baseURL: "):
        assert words in page
    assert 'id="search-paths"' in page


def test_every_call_has_a_summary_and_an_anchor_of_its_own() -> None:
    assert {call.path for call in calls() if call.method == "POST"} == {
        *CALLS,
        *(endpoint.path for endpoint in ENDPOINTS),
    }
    anchors = [call.anchor for call in (*calls(), *reads())]
    assert len(set(anchors)) == len(anchors)


def test_it_needs_no_other_host(page: str) -> None:
    loaded = re.findall(r'<(?:script|link|img|iframe)[^>]*?(?:src|href)="([^"]*)"', page)
    assert loaded
    assert [one for one in loaded if "//" in one] == []


def test_every_link_within_it_leads_somewhere(page: str) -> None:
    targets = set(re.findall(r'href="#([^"]+)"', page))
    assert targets and targets <= set(re.findall(r'id="([^"]+)"', page))


def test_strangers_find_it_from_the_front() -> None:
    client = Client()
    landed = client.get("/", follow=True)
    assert 'href="/docs"' in landed.content.decode()
    assert client.get("/docs/").status_code == 200
    assert client.post("/docs").status_code == 405
