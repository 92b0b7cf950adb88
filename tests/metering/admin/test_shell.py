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


def test_names_are_searched_from_every_page_beside_what_its_reader_may_open(
    operator: Client, account: Account
) -> None:
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
    link = re.compile(r'<a href="([^"]+)" class="flex h-\[38px\]([^"]*)"')
    of_members = ["/playground/", "/requests/", "/usage/", "/usage/keys", "/docs"]
    mia = person("mia", account, role="member")
    for path in of_members:
        text = text_of(mia, path)
        assert [(one, " active" in classes) for one, classes in link.findall(text)] == [
            (one, one == path) for one in of_members
        ]
        assert 'action="/logout/"' in text and 'id="search"' not in text
    paths = [one for one, _ in link.findall(text_of(client, "/usage/"))]
    assert "/admin/fleet/cataloguemodel/" in paths
    assert {"/admin/fleet/device/", "/usage/audit", settings}.isdisjoint(paths)
    assert [path for path in paths if client.get(path).status_code != 200] == []
    text = text_of(Client(), "/docs")
    assert link.findall(text) == [] and 'href="/login/"' in text and "Log out" not in text


def test_a_request_leads_to_what_it_names_and_back(operator: Client, account: Account) -> None:
    """The pages of its model, neuron, replica and upstream lead to the requests of theirs alone."""
    now, request_id = timezone.now(), uuid.UUID("5eed" * 8)
    model = CatalogueModel.objects.create(name="tiny", source="pypi:tiny")
    key = services.key_create(actor=COMMAND, account=account, name="ci").row
    moments = {"status_since": now, "started_at": now, "last_seen_at": now}
    neuron = Neuron.objects.create(name="beast", status="online", **moments)
    ready = {"status": "ready", "status_since": now}
    replica = Replica.objects.create(neuron=neuron, model=model, model_name="tiny", **ready)
    recorded(key=key.prefix, request_id=request_id, neuron="beast")
    made = services_of_fleet.upstream_create(actor=COMMAND, name="cloud", url="http://box/v1")
    passed = recorded(neuron="upstream:cloud", model="large")
    own, both = {request_id.hex}, (request_id.hex, passed)
    at_replica, dashboard = f"/admin/fleet/replica/{replica.pk}/change/", "/admin/dashboard"
    of_model, of_neuron = f"{dashboard}/model?name=tiny", f"{dashboard}/neuron?name=beast"
    upstream = f"{dashboard}/neuron?name=upstream%3Acloud"
    rows = (("account", "research"), ("apikey", key.prefix))
    changes = (f"/admin/metering/{noun}/{pk}/change/" for noun, pk in rows)
    text = text_of(operator, f"/requests/{request_id.hex}")
    for address in (of_model, of_neuron, *changes):
        assert f'href="{address}"' in text
    assert f"{key.prefix} (ci)" in text_of(operator, "/requests/")
    assert f'href="{upstream}"' in text_of(operator, f"/requests/{passed}")
    for address, back, ids in (
        (of_model, "model=tiny", own),
        (of_neuron, "neuron=beast", own),
        (at_replica, "model=tiny&neuron=beast", own),
        (upstream, "neuron=upstream%3Acloud", {passed}),
    ):
        home = operator.get(address, follow=True).text
        assert f'href="/requests/?{escape(back)}"' in home
        assert ("beast" in address) <= (f'href="{at_replica}"' in home)
        found = text_of(operator, f"/requests/?{back}")
        assert {one for one in both if f'href="/requests/{one}"' in found} == ids
    services_of_fleet.upstream_delete(actor=COMMAND, upstream=made)
    gone = {upstream: "upstream/?q=cloud", f"{dashboard}/neuron?name=gone": "neuron/?q=gone"}
    for address, listed in gone.items():  # what has left is looked for
        assert operator.get(address)["Location"] == f"/admin/fleet/{listed}"
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


def test_a_first_key_has_snippets_and_its_account(operator: Client, account: Account) -> None:
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
    ApiKey.objects.all().delete()
    CatalogueModel.objects.all().delete()
    account.delete()
    assert "made with it" in text_of(operator, CARD)
    text = operator.post(KEY, headers=BY_HTMX).text
    assert ApiKey.objects.get().account_id == "team" and "has no model yet" in text
    refused = operator.post(KEY, {"account": "No Slug"}, headers=BY_HTMX).text
    assert "lower-case slug" in refused and ApiKey.objects.count() == 1
