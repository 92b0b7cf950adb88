"""The dashboard's card of first steps: it is there until all are done, or the reader hides it."""

from __future__ import annotations

import re
import uuid

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.utils import timezone

from fleet.first_steps import snippets
from fleet.management.connect.clients import Target
from fleet.models import CatalogueModel, Invitation
from metering import services
from metering.actor import COMMAND
from metering.models import Account, ApiKey, RequestRecord
from tests.metering.admin.admin_support import newest

pytestmark = pytest.mark.django_db

CARD = "/admin/dashboard/first-steps"
KEY = "/admin/dashboard/first-key"
HIDE = "/admin/dashboard/hide-first-steps"
BY_HTMX = {"hx-request": "true"}


def shown(client: Client) -> str:
    response = client.get(CARD)
    assert response.status_code == 200
    return response.text


def answered(**values: object) -> str:
    tokens = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")
    made = RequestRecord.objects.create(
        **{
            **dict.fromkeys((*tokens, "cost_micro_usd", "duration_ms"), 1),
            "request_id": uuid.uuid4(),
            "at": timezone.now(),
            "endpoint": "/v1/chat/completions",
            "status": 200,
            "outcome": "answered",
            **values,
        }
    )
    return made.request_id.hex


def test_steps_are_ticked_until_none_is_left(operator: Client, account: Account) -> None:
    text = operator.get("/admin/").text
    assert 'id="first-steps"' in text and ">done<" not in text
    assert "Make a key" in text and "Send a request" in text
    services.key_create(actor=COMMAND, account=account)
    assert shown(operator).count(">done<") == 1
    answered(status=503, outcome="failed", code="neuron_lost")
    assert "Send a request" in shown(operator)
    request_id = answered()
    text = shown(operator)
    assert "First request received" in text and f'href="/requests/{request_id}"' in text
    Invitation.objects.create(neuron_name="attic")
    assert shown(operator).count(">done<") == 3
    User.objects.create_user("mia")
    assert shown(operator).strip() == ""
    assert 'id="first-steps"' not in operator.get("/admin/").text


def test_keys_of_playgrounds_and_revoked_ones_do_not_count(
    operator: Client, account: Account
) -> None:
    services.key_create(actor=COMMAND, account=account, name="playground", scopes=["inference"])
    gone = services.key_create(actor=COMMAND, account=account).row
    services.key_revoke(actor=COMMAND, key=gone)
    assert ">done<" not in shown(operator)


def test_a_key_comes_with_snippets_that_have_it(operator: Client, account: Account) -> None:
    CatalogueModel.objects.create(name="tiny", source="pypi:tiny")
    response = operator.post(KEY, {"account": "research"}, headers=BY_HTMX)
    assert "no-store" in response["Cache-Control"] and "<html" not in response.text
    key = ApiKey.objects.get()
    assert key.account == account and newest() == ("user:carol", "key.create", key.prefix)
    found = re.search(rf"{key.prefix}-[A-Za-z0-9_-]+", response.text)
    assert found is not None
    assert response.text.count(found[0]) >= 6, "the key itself, and each snippet"
    for words in ("Claude Code", "opencode", "Open WebUI", "http://testserver/v1", "tiny"):
        assert words in response.text
    assert "<html" in operator.post(KEY, {"account": "research"}).text


def test_the_first_account_is_made_with_its_key(operator: Client, account: Account) -> None:
    account.delete()
    assert "made with it" in shown(operator)
    text = operator.post(KEY, headers=BY_HTMX).text
    assert ApiKey.objects.get().account_id == "team" and "has no model yet" in text
    refused = operator.post(KEY, {"account": "No Slug"}, headers=BY_HTMX).text
    assert "lower-case slug" in refused and ApiKey.objects.count() == 1


def test_who_may_make_no_key_is_offered_none(account: Account) -> None:
    user = User.objects.create_user("dave", is_staff=True)
    client = Client()
    client.force_login(user)
    assert "Make a key" not in shown(client)
    assert client.post(KEY, {"account": "research"}).status_code == 403
    user.user_permissions.add(Permission.objects.get(codename="add_apikey"))
    assert client.post(KEY, {"account": "new"}).status_code == 403
    assert client.post(KEY, {"account": "research"}).status_code == 200
    assert Client().post(KEY).status_code == 302


def test_it_can_be_hidden(operator: Client) -> None:
    assert operator.get(HIDE).status_code == 405
    assert operator.post(HIDE, headers=BY_HTMX).text == ""
    assert shown(operator).strip() == ""
    assert operator.post(HIDE)["Location"] == "/admin/"


def test_snippets_quote_what_they_hold() -> None:
    target = Target(url="http://box:31313", model='it\'s "x"', key="hx-1-2")
    curl, python, *_ = snippets(target)
    assert "it'\"'\"'s" in curl.text
    compile(python.text, "snippet", "exec")
