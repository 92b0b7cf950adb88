"""One navigation beside every page, with what its reader may open; and the card of first steps."""

from __future__ import annotations

import re

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from fleet.first_steps import snippets
from fleet.management.clients import Target
from fleet.models import CatalogueModel, Invitation
from helexa_site.web.navigation import GROUPS
from metering import services
from metering.actor import COMMAND
from metering.models import Account, ApiKey
from tests.cases import each_case
from tests.metering.callers import newest, person, recorded, staff, text_of

pytestmark = pytest.mark.django_db

LINK = re.compile(r'<a href="([^"]+)" class="flex h-\[38px\]([^"]*)"')
OF_MEMBERS = ["/playground/", "/requests/", "/usage/", "/usage/keys", "/docs"]
PAGES = ("/admin/", "/playground/", "/bench/", "/api/docs", "/admin/fleet/neuron/", "/password/")


def links(text: str) -> list[str]:
    return [address for address, _ in LINK.findall(text)]


@each_case("path", PAGES)
def test_operators_have_one_navigation_everywhere(operator: Client, path: str) -> None:
    text = text_of(operator, path)
    items = [item for items in GROUPS.values() for item in items]
    assert len(links(text)) == len(items) == len({item.title for item in items})
    lists = {
        reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
        for model in admin.site._registry
    }
    assert lists - set(links(text)) == set(), "each list of the admin has its place"
    titles = re.findall(r"<h2[^>]*>\s*(?:<span[^>]*>)?\s*(\w+)", text)
    groups = [title for title in GROUPS if title]
    assert [title for title in titles if title in groups][: len(groups)] == groups
    assert text.count(">Accounts<") <= 2, "in the navigation and as a heading"
    assert 'class="hx-skip" href="#main"' in text and 'id="main" role="main"' in text
    shown = text[text.index('id="page"') :].partition('x-data="searchCommand()"')[0]
    icons = re.findall(r"<span[^>]*material-symbols-outlined[^>]*>", shown)
    assert icons and all("aria-hidden" in icon for icon in icons), "names are not read out"


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


def test_a_heading_names_the_page_and_the_way_back(operator: Client) -> None:
    request_id = recorded()
    for path, words in (
        ("/admin/fleet/neuron/", ["Fleet", "Neurons"]),
        ("/admin/fleet/download/cached/", ["Fleet", "Downloads", "What neurons have downloaded"]),
        (f"/requests/{request_id}", ["Requests", f"Request {request_id[:12]}"]),
    ):
        (found,) = re.findall(r"<h1.*?</h1>", text_of(operator, path), re.DOTALL)
        parts = [re.sub(r"\s+", " ", one).strip() for one in re.split(r"<[^>]+>", found)]
        assert [one for one in parts if one and one != "chevron_right"] == words, path
    assert '<h1><a href="/requests/">Requests</a>' in text_of(operator, f"/requests/{request_id}")


def test_members_staff_and_strangers_see_what_they_may_open(account: Account) -> None:
    mia = person("mia", account, role="member", password="her own")
    own_menu = ('id="user-menu"', 'action="/logout/"', 'href="/password/"', "switchTheme('dark')")
    for path in OF_MEMBERS:
        text = text_of(mia, path)
        assert links(text) == OF_MEMBERS
        assert [one for one, classes in LINK.findall(text) if " active" in classes] == [path]
        assert [part for part in own_menu if part not in text] == []
    client = staff("dave", "view_neuron")
    found = links(text_of(client, "/usage/"))
    assert "/admin/fleet/neuron/" in found and "/admin/fleet/device/" not in found
    assert "/usage/audit" not in found and "/admin/settings/" not in found
    assert [path for path in found if client.get(path).status_code != 200] == []
    text = text_of(Client(), "/docs")
    assert links(text) == [] and 'href="/login/"' in text and "Log out" not in text


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
    target = Target(url="http://box:31313", model='it\'s "x"', key="hx-1-2")
    curl, python, *_ = snippets(target)
    assert "it'\"'\"'s" in curl.text, "they quote what they hold"
    compile(python.text, "snippet", "exec")


def test_the_first_account_is_made_with_its_key(operator: Client, account: Account) -> None:
    account.delete()
    assert "made with it" in text_of(operator, CARD)
    text = operator.post(KEY, headers=BY_HTMX).text
    assert ApiKey.objects.get().account_id == "team" and "has no model yet" in text
    refused = operator.post(KEY, {"account": "No Slug"}, headers=BY_HTMX).text
    assert "lower-case slug" in refused and ApiKey.objects.count() == 1


def test_who_may_make_no_key_is_offered_none(account: Account) -> None:
    client, maker = staff(), staff("maker", "add_apikey")
    assert "Make a key" not in text_of(client, CARD)
    for reader, name, status in (
        (client, "research", 403),
        (maker, "new", 403),
        (maker, "research", 200),
        (Client(), "research", 302),
    ):
        assert reader.post(KEY, {"account": name}).status_code == status
