"""Whose budgets a playground asks from, and the keys that it asks with."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.utils import timezone

from metering import services
from metering.actor import COMMAND
from metering.models import Account, ApiKey, AuditEntry
from metering.playground.keys import LIFETIME, is_playground_key
from tests.metering.api_support import person

pytestmark = pytest.mark.django_db


@pytest.fixture
def account() -> Account:
    services.account_create(actor=COMMAND, name="theirs")
    return services.account_create(actor=COMMAND, name="ours")


def offered(client: Any) -> list[str]:
    page = client.get("/playground/").content.decode()
    found = re.search(r'<script id="playground-settings"[^>]*>(.*?)</script>', page)
    return list(json.loads(found[1])["accounts"]) if found else []


def test_a_stranger_is_led_to_the_log_in(client: Any) -> None:
    for answer in (client.get("/playground/"), client.post("/playground/key")):
        assert (answer.status_code, answer["Location"].startswith("/login/")) == (302, True)


def test_a_member_asks_from_their_account(account: Account) -> None:
    client = person("ann", account, role="member")
    assert offered(client) == ["ours"]
    answer = client.post("/playground/key", {"account": "ours"})
    assert answer.status_code == 201
    assert "no-store" in answer["Cache-Control"]
    (row,) = ApiKey.objects.all()
    assert answer.json()["key"].startswith(row.prefix)
    assert (row.account, row.scopes) == (account, ["inference"])
    assert row.expires_at is not None
    assert answer.json()["expires_unix_s"] == int(row.expires_at.timestamp())
    assert row.expires_at - timezone.now() <= LIFETIME
    entry = AuditEntry.objects.get(action="key.create")
    assert entry.object_id == row.prefix
    assert is_playground_key(row)
    assert row.prefix not in client.get("/usage/keys").content.decode(), "it passes by itself"


@pytest.mark.parametrize("named", ["theirs", "nowhere", "", "anonymous"])
def test_nobody_asks_from_anothers(account: Account, named: str) -> None:
    client = person("ann", account, role="member")
    answer = client.post("/playground/key", {"account": named})
    assert (answer.status_code, list(answer.json())) == (403, ["error"])
    assert not ApiKey.objects.exists()


def test_a_viewer_has_nothing_to_ask_from(account: Account) -> None:
    client = person("vic", account, role="viewer")
    assert offered(client) == []
    assert client.post("/playground/key", {"account": "ours"}).status_code == 403


def test_an_operator_may_ask_from_any_their_own_first(account: Account) -> None:
    theirs = Account.objects.get(name="theirs")
    client = person("opal", theirs, is_staff=True)
    names = offered(client)
    assert names[0] == "theirs"
    assert "ours" in names and "anonymous" not in names
    assert client.post("/playground/key", {"account": "ours"}).status_code == 201


def test_a_key_is_made_by_post_alone(account: Account) -> None:
    client = person("ann", account, role="member")
    assert client.get("/playground/key").status_code == 405


def test_forged_posts_make_none(account: Account) -> None:
    client = person("ann", account, role="member")
    client.handler.enforce_csrf_checks = True
    assert client.post("/playground/key", {"account": "ours"}).status_code == 403
    assert not ApiKey.objects.exists()
