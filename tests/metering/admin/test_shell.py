"""One navigation beside every page, with what its reader may open."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from helexa_site.web.navigation import GROUPS
from metering.models import Account
from tests.cases import each_case
from tests.metering.api.api_support import person

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


def page(client: Client, path: str) -> str:
    response = client.get(path)
    assert response.status_code == 200, path
    return response.text


def links(text: str) -> list[str]:
    return [address for address, _ in LINK.findall(text)]


@each_case("path", PAGES)
def test_operators_have_one_navigation_everywhere(operator: Client, path: str) -> None:
    text = page(operator, path)
    assert len(links(text)) == sum(len(items) for _, items in GROUPS)
    assert text.count(">Accounts<") <= 2, "in the navigation and as a heading"
    titles = [item.title for _, items in GROUPS for item in items]
    assert len(set(titles)) == len(titles), "no second list of a name"
    assert 'class="hx-skip" href="#main"' in text and 'id="main" role="main"' in text


@pytest.mark.parametrize("path", ["/playground/", "/requests/", "/usage/", "/usage/keys", "/docs"])
def test_members_have_their_pages(account: Account, path: str) -> None:
    text = page(person("mia", account, role="member", password="her own"), path)
    assert links(text) == OF_MEMBERS
    active = [address for address, classes in LINK.findall(text) if " active" in classes]
    assert active == [path]
    for part in ('id="user-menu"', 'action="/logout/"', 'href="/password/"', "switchTheme('dark')"):
        assert part in text


def test_staff_see_what_they_may_open(account: Account) -> None:
    user = User.objects.create_user("dave", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_neuron"))
    client = Client()
    client.force_login(user)
    found = links(page(client, "/usage/"))
    assert "/admin/fleet/neuron/" in found and "/admin/fleet/device/" not in found
    assert "/usage/audit" not in found and "/admin/settings/" not in found
    assert [path for path in found if client.get(path).status_code != 200] == []


def test_strangers_have_none() -> None:
    text = page(Client(), "/docs")
    assert links(text) == [] and 'href="/login/"' in text and "Log out" not in text


def test_names_of_icons_are_not_read_out(operator: Client) -> None:
    text = page(operator, "/admin/")
    shown = text[text.index('id="page"') : text.index('x-data="searchCommand()"')]
    assert icons(shown) and all("aria-hidden" in icon for icon in icons(shown))


@pytest.mark.parametrize("path", ["/login/", "/admin/login/"])
def test_the_logins_have_a_main_part_and_unread_icons(path: str) -> None:
    text = page(Client(), path)
    assert 'role="main"' in text
    assert icons(text) and all("aria-hidden" in icon for icon in icons(text))


def icons(text: str) -> list[str]:
    return re.findall(r"<span[^>]*material-symbols-outlined[^>]*>", text)
