"""``/requests/``: what members and operators find there."""

from __future__ import annotations

import csv
import io

import pytest
from django.test import Client

from metering.links import requests_url
from metering.models import Account
from metering.requests.views import ROWS
from tests.metering.api.api_support import person
from tests.metering.request_records.test_requests_api import record

pytestmark = pytest.mark.django_db


@pytest.fixture
def mia(account: Account) -> Client:
    return person("mia", account, role="member")


@pytest.fixture
def olga(account: Account) -> Client:
    return person("olga", is_staff=True)


def text_of(client: Client, path: str, **headers: str) -> str:
    response = client.get(path, headers=headers)
    assert response.status_code == 200
    return response.content.decode()


def test_members_find_their_own(mia: Client, olga: Client) -> None:
    own, other = record(account="research"), record(account="other", error_message="<b>secret")
    text = text_of(mia, "/requests/")
    assert own[:8] in text and other[:8] not in text
    assert own in text_of(mia, f"/requests/{own}")
    assert mia.get(f"/requests/{other}").status_code == 404
    assert mia.get("/requests/none").status_code == 404
    text = text_of(olga, f"/requests/{other}")
    assert other in text and "&lt;b&gt;secret" in text and "<b>secret" not in text


def test_filters_are_in_the_address(olga: Client) -> None:
    failed = record(status=503, outcome="neuron_lost", neuron="attic")
    answered = record()
    text = text_of(olga, requests_url(outcome="failed", neuron="attic", code=""))
    assert failed[:8] in text and answered[:8] not in text
    assert 'value="attic"' in text and "<option selected>failed" in text


def test_a_filter_that_cannot_be_is_named(olga: Client) -> None:
    text = text_of(olga, "/requests/?status=many")
    assert "&#x27;many&#x27; is not an HTTP status" in text


def test_the_live_part_is_the_rows_alone(olga: Client) -> None:
    request_id = record()
    text = text_of(olga, "/requests/?model=tiny", **{"HX-Request": "true"})
    assert request_id[:8] in text and text.lstrip().startswith('<div id="request-rows">')
    assert "<html" not in text


def test_older_pages(olga: Client) -> None:
    made = [record() for _ in range(ROWS + 1)]
    text = text_of(olga, "/requests/")
    assert "Older" in text and 'id="live"' in text and "Newest" not in text
    older = text_of(olga, f"/requests/?before={made[1]}")
    assert made[0][:8] in older and made[1][:8] not in older
    assert "Newest" in older and 'id="live"' not in older


def test_csv(mia: Client) -> None:
    own = record(account="research")
    record(account="other")
    response = mia.get("/requests/?format=csv")
    assert response["Content-Type"].startswith("text/csv")
    (row,) = csv.DictReader(io.StringIO(response.content.decode()))
    assert row["id"] == own
