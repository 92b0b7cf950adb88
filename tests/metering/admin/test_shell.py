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
PAGES = (
    "/admin/",
    "/playground/",
    "/requests/",
    "/usage/",
    "/usage/keys",
    "/usage/accounts",
    "/usage/audit",
    "/bench/",
    "/docs",
    "/api/docs",
    "/admin/settings/",
    "/admin/fleet/neuron/",
    "/password/",
)


def links(text: str) -> list[str]:
    return [address for address, _ in LINK.findall(text)]


@each_case("path", PAGES)
def test_operators_have_one_navigation_everywhere(operator: Client, path: str) -> None:
    text = text_of(operator, path)
    assert len(links(text)) == sum(len(items) for items in GROUPS.values())
    assert text.count(">Accounts<") <= 2, "in the navigation and as a heading"
    titles = [item.title for items in GROUPS.values() for item in items]
    assert len(set(titles)) == len(titles), "no second list of a name"
    assert 'class="hx-skip" href="#main"' in text and 'id="main" role="main"' in text
    shown = text[text.index('id="page"') :].partition('x-data="searchCommand()"')[0]
    icons = re.findall(r"<span[^>]*material-symbols-outlined[^>]*>", shown)
    assert icons and all("aria-hidden" in icon for icon in icons), "names are not read out"


def test_each_list_of_the_admin_has_its_place(operator: Client) -> None:
    text = text_of(operator, "/requests/")
    titles = re.findall(r"<h2[^>]*>\s*(?:<span[^>]*>)?\s*(\w+)", text)
    groups = ["Models", "Fleet", "Bench", "People", "System"]
    assert [title for title in titles if title in groups] == groups
    lists = {
        reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
        for model in admin.site._registry
    }
    assert lists - set(links(text)) == set()
    system = text[text.index("System") :]
    for words in ("Ledger", "Audit", "Settings", "API reference"):
        assert words in system, words


def test_names_are_searched_from_every_page(operator: Client, account: Account) -> None:
    CatalogueModel.objects.create(name="research-tiny", source="pypi:tiny")
    assert all('id="search"' in text_of(operator, path) for path in ("/admin/", "/usage/"))
    found = text_of(operator, "/admin/search/?s=research&extended=1")
    assert ">research-tiny<" in found and "/admin/metering/account/research/change/" in found
    assert "/admin/metering/budget/" in text_of(operator, "/admin/search/?s=budget&extended=1")
    found = text_of(operator, "/admin/search/?s=0123abcd&extended=1")
    assert 'href="/requests/?id=0123abcd"' in found
    found = text_of(operator, "/admin/search/?s=set&extended=1")
    assert 'href="/admin/settings/"' in found
    client = staff("dave", "view_cataloguemodel", "add_account")
    assert "/admin/settings/" not in text_of(client, "/admin/search/?s=set&extended=1")
    found = text_of(client, "/admin/search/?s=research&extended=1")
    assert ">research-tiny<" in found and "/account/research/" not in found
    assert 'id="search"' not in text_of(person("mia", account, role="member"), "/usage/")


def heading(text: str) -> list[str]:
    (found,) = re.findall(r"<h1.*?</h1>", text, re.DOTALL)
    words = (re.sub(r"\s+", " ", word).strip() for word in re.split(r"<[^>]+>", found))
    return [word for word in words if word and word != "chevron_right"]


def test_a_heading_names_the_page_and_the_way_back(operator: Client) -> None:
    request_id = recorded()
    for path, words in (
        ("/admin/fleet/neuron/", ["Fleet", "Neurons"]),
        ("/admin/fleet/download/cached/", ["Fleet", "Downloads", "What neurons have downloaded"]),
        ("/admin/dashboard/sharing", ["Sharing"]),
        ("/api/docs", ["Fleet API"]),
        (f"/requests/{request_id}", ["Requests", f"Request {request_id[:12]}"]),
    ):
        assert heading(text_of(operator, path)) == words, path
    assert '<h1><a href="/requests/">Requests</a>' in text_of(operator, f"/requests/{request_id}")


@each_case("path", OF_MEMBERS)
def test_members_have_their_pages(account: Account, path: str) -> None:
    text = text_of(person(f"mia{path}", account, role="member", password="her own"), path)
    assert links(text) == OF_MEMBERS
    active = [address for address, classes in LINK.findall(text) if " active" in classes]
    assert active == [path]
    for part in ('id="user-menu"', 'action="/logout/"', 'href="/password/"', "switchTheme('dark')"):
        assert part in text


def test_staff_see_what_they_may_open_and_strangers_nothing(account: Account) -> None:
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


def shown(client: Client) -> str:
    return text_of(client, CARD)


def test_steps_are_ticked_until_none_is_left(operator: Client, account: Account) -> None:
    text = operator.get("/admin/").text
    assert 'id="first-steps"' in text and ">done<" not in text
    assert "Make a key" in text and "Send a request" in text
    services.key_create(actor=COMMAND, account=account, name="playground", scopes=["inference"])
    gone = services.key_create(actor=COMMAND, account=account).row
    services.key_revoke(actor=COMMAND, key=gone)
    assert ">done<" not in shown(operator), "those do not count"
    services.key_create(actor=COMMAND, account=account)
    assert shown(operator).count(">done<") == 1
    recorded(status=503, outcome="failed", code="neuron_lost")
    assert "Send a request" in shown(operator)
    request_id = recorded()
    text = shown(operator)
    assert "First request received" in text and f'href="/requests/{request_id}"' in text
    Invitation.objects.create(neuron_name="attic")
    assert shown(operator).count(">done<") == 3
    User.objects.create_user("mia")
    assert shown(operator).strip() == ""
    assert 'id="first-steps"' not in operator.get("/admin/").text
    User.objects.get(username="mia").delete()
    assert shown(operator).strip() and operator.get(HIDE).status_code == 405
    assert operator.post(HIDE, headers=BY_HTMX).text == ""
    assert shown(operator).strip() == ""
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


def test_the_first_account_is_made_with_its_key(operator: Client, account: Account) -> None:
    account.delete()
    assert "made with it" in shown(operator)
    text = operator.post(KEY, headers=BY_HTMX).text
    assert ApiKey.objects.get().account_id == "team" and "has no model yet" in text
    refused = operator.post(KEY, {"account": "No Slug"}, headers=BY_HTMX).text
    assert "lower-case slug" in refused and ApiKey.objects.count() == 1


def test_who_may_make_no_key_is_offered_none(account: Account) -> None:
    client = staff()
    assert "Make a key" not in shown(client)
    assert client.post(KEY, {"account": "research"}).status_code == 403
    client = staff("maker", "add_apikey")
    assert client.post(KEY, {"account": "new"}).status_code == 403
    assert client.post(KEY, {"account": "research"}).status_code == 200
    assert Client().post(KEY).status_code == 302


def test_snippets_quote_what_they_hold() -> None:
    target = Target(url="http://box:31313", model='it\'s "x"', key="hx-1-2")
    curl, python, *_ = snippets(target)
    assert "it'\"'\"'s" in curl.text
    compile(python.text, "snippet", "exec")
