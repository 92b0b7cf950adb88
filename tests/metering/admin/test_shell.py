"""One navigation beside every page, with what its reader may open; names that lead to their pages;
and the card of first steps."""

from __future__ import annotations

import re
import uuid

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from django.utils.html import escape

from fleet import services as services_of_fleet
from fleet.dashboard.first_steps import snippets
from fleet.management.clients import Target
from fleet.models import CatalogueModel, Invitation, Neuron, Replica
from metering import services
from metering.audit import COMMAND
from metering.models import Account, ApiKey
from tests.metering.callers import newest, person, recorded, staff, text_of

pytestmark = pytest.mark.django_db

LINK = re.compile(r'<a href="([^"]+)" class="flex h-\[38px\]([^"]*)"')
OF_MEMBERS = ["/playground/", "/requests/", "/usage/", "/usage/keys", "/docs"]


def links(text: str) -> list[str]:
    return [address for address, _ in LINK.findall(text)]


def test_members_staff_and_strangers_see_what_they_may_open(account: Account) -> None:
    mia = person("mia", account, role="member", password="her own")
    for path in OF_MEMBERS:
        text = text_of(mia, path)
        assert links(text) == OF_MEMBERS
        assert [one for one, classes in LINK.findall(text) if " active" in classes] == [path]
        assert 'action="/logout/"' in text and 'href="/password/"' in text
    client = staff("dave", "view_neuron")
    found = links(text_of(client, "/usage/"))
    assert "/admin/fleet/neuron/" in found and "/admin/fleet/device/" not in found
    assert "/usage/audit" not in found and "/admin/settings/" not in found
    assert [path for path in found if client.get(path).status_code != 200] == []
    text = text_of(Client(), "/docs")
    assert links(text) == [] and 'href="/login/"' in text and "Log out" not in text


def test_names_are_searched_from_every_page(operator: Client, account: Account) -> None:
    CatalogueModel.objects.create(name="research-tiny", source="pypi:tiny")
    assert all('id="search"' in text_of(operator, path) for path in ("/admin/", "/usage/"))
    client = staff("dave", "view_cataloguemodel", "add_account")
    model, of_account, settings = ">research-tiny<", "/account/research/", "/admin/settings/"
    for reader, words, there, missing in (
        (operator, "research", [model, of_account], [settings]),
        (operator, "budget", ["/admin/metering/budget/"], [model]),
        (operator, "0123abcd", ['href="/requests/?id=0123abcd"'], []),
        (operator, "0123abc", [], ["/requests/?id="]),
        (operator, "set", [f'href="{settings}"'], [model]),
        (client, "set", [], [settings]),
        (client, "research", [model], [of_account]),
    ):
        found = text_of(reader, f"/admin/search/?s={words}&extended=1")
        assert [one for one in there if one not in found] == [], words
        assert [one for one in missing if one in found] == [], words
    assert 'id="search"' not in text_of(person("mia", account, role="member"), "/usage/")


def test_a_request_leads_to_what_it_names_and_back(operator: Client, account: Account) -> None:
    """The pages of its model, neuron, replica and upstream lead to the requests of theirs alone."""
    now, request_id = timezone.now(), uuid.UUID("5eed" * 8)
    model = CatalogueModel.objects.create(name="tiny", source="pypi:tiny")
    key = services.key_create(actor=COMMAND, account=account, name="ci").row
    moments = {"status_since": now, "started_at": now, "last_seen_at": now}
    neuron = Neuron.objects.create(name="beast", status="online", **moments)
    replica = Replica.objects.create(
        neuron=neuron, model=model, model_name="tiny", status="ready", status_since=now
    )
    recorded(key=key.prefix, request_id=request_id, neuron="beast")
    made = services_of_fleet.upstream_create(actor=COMMAND, name="cloud", url="http://box/v1")
    passed = recorded(neuron="upstream:cloud", model="large")
    at_replica = f"/admin/fleet/replica/{replica.pk}/change/"
    upstream = "/admin/dashboard/neuron?name=upstream%3Acloud"
    text = text_of(operator, f"/requests/{request_id.hex}")
    for address in (
        "/admin/dashboard/model?name=tiny",
        "/admin/dashboard/neuron?name=beast",
        "/admin/metering/account/research/change/",
        f"/admin/metering/apikey/{key.prefix}/change/",
    ):
        assert f'href="{address}"' in text
    assert f"{key.prefix} (ci)" in text_of(operator, "/requests/")
    assert f'href="{upstream}"' in text_of(operator, f"/requests/{passed}")
    for address, back, ids in (
        ("/admin/dashboard/model?name=tiny", "model=tiny", {request_id.hex}),
        ("/admin/dashboard/neuron?name=beast", "neuron=beast", {request_id.hex}),
        (at_replica, "model=tiny&neuron=beast", {request_id.hex}),
        (upstream, "neuron=upstream%3Acloud", {passed}),
    ):
        home = operator.get(address, follow=True).text
        assert f'href="/requests/?{escape(back)}"' in home
        assert ("beast" in address) <= (f'href="{at_replica}"' in home)
        found = text_of(operator, f"/requests/?{back}")
        both = (request_id.hex, passed)
        assert {one for one in both if f'href="/requests/{one}"' in found} == ids
    services_of_fleet.upstream_delete(actor=COMMAND, upstream=made)
    for address, listed in (
        (upstream, "/admin/fleet/upstream/?q=cloud"),
        ("/admin/dashboard/neuron?name=gone", "/admin/fleet/neuron/?q=gone"),
    ):
        assert operator.get(address)["Location"] == listed, "what has left is looked for"
    mia = person("mia", account, role="member")
    for path in ("/requests/", f"/requests/{request_id.hex}"):
        text = text_of(mia, path)
        assert "tiny" in text and 'href="/admin/' not in text


CARD = "/admin/dashboard/first-steps"
KEY = "/admin/dashboard/first-key"
HIDE = "/admin/dashboard/hide-first-steps"
BY_HTMX = {"hx-request": "true"}


def test_steps_are_ticked_until_none_is_left(operator: Client, account: Account) -> None:
    def shown() -> str:
        return text_of(operator, CARD)

    text = operator.get("/admin/").text
    assert 'id="first-steps"' in text and ">done<" not in text
    assert "Make a key" in text and "Send a request" in text
    services.key_create(actor=COMMAND, account=account, name="playground", scopes=["inference"])
    gone = services.key_create(actor=COMMAND, account=account).row
    services.key_revoke(actor=COMMAND, key=gone)
    assert ">done<" not in shown(), "those do not count"
    services.key_create(actor=COMMAND, account=account)
    assert shown().count(">done<") == 1
    recorded(status=503, outcome="failed", code="neuron_lost")
    assert "Send a request" in shown()
    request_id = recorded()
    text = shown()
    assert "First request received" in text and f'href="/requests/{request_id}"' in text
    Invitation.objects.create(neuron_name="attic")
    assert shown().count(">done<") == 3
    User.objects.create_user("mia")
    assert shown().strip() == ""
    assert 'id="first-steps"' not in operator.get("/admin/").text
    User.objects.get(username="mia").delete()
    assert shown().strip() and operator.get(HIDE).status_code == 405
    assert operator.post(HIDE, headers=BY_HTMX).text == ""
    assert shown().strip() == ""
    assert operator.post(HIDE)["Location"] == "/admin/"


def test_a_first_key_comes_with_snippets_that_have_it(operator: Client, account: Account) -> None:
    CatalogueModel.objects.create(name="tiny", source="pypi:tiny")
    response = operator.post(KEY, {"account": "research"}, headers=BY_HTMX)
    assert "no-store" in response["Cache-Control"] and "<html" not in response.text
    key = ApiKey.objects.get()
    assert key.account == account and newest() == ("user:carol", "key.create", key.prefix)
    found = re.search(rf"{key.prefix}-[A-Za-z0-9_-]+", response.text)
    assert found is not None
    assert response.text.count(found[0]) >= 6, "the key itself, and each snippet"
    assert "http://testserver/v1" in response.text
    curl, python, *_ = snippets(Target(url="http://box:1", model='it\'s "x"', key="hx-1-2"))
    assert "it'\"'\"'s" in curl.text, "they quote what they hold"
    compile(python.text, "snippet", "exec")
    client, maker = staff(), staff("maker", "add_apikey")
    assert "Make a key" not in text_of(client, CARD)
    for reader, name, status in (
        (client, "research", 403),
        (maker, "new", 403),
        (maker, "research", 200),
        (Client(), "research", 302),
    ):
        assert reader.post(KEY, {"account": name}).status_code == status


def test_the_first_account_is_made_with_its_key(operator: Client, account: Account) -> None:
    account.delete()
    assert "made with it" in text_of(operator, CARD)
    text = operator.post(KEY, headers=BY_HTMX).text
    assert ApiKey.objects.get().account_id == "team" and "has no model yet" in text
    refused = operator.post(KEY, {"account": "No Slug"}, headers=BY_HTMX).text
    assert "lower-case slug" in refused and ApiKey.objects.count() == 1
