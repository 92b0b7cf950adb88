"""The settings in the admin: all of them, without secrets, for superusers."""

from __future__ import annotations

import html

import pytest
from django.contrib.auth.models import User
from django.test import Client

from helexa_site.web import pages
from inference.settings.table import SETTINGS

pytestmark = pytest.mark.django_db


def client_of(username: str, **attributes: bool) -> Client:
    client = Client(headers={"host": "localhost"})
    client.force_login(User.objects.create_user(username, **attributes))
    return client


def test_every_setting_is_shown_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {one.name: "sesame-and-long-enough" for one in SETTINGS if one.is_secret}
    environment["HELEXA_MAX_IMAGES"] = "37"
    monkeypatch.setattr(pages, "ENVIRONMENT", environment)
    answer = client_of("olga", is_staff=True, is_superuser=True).get("/admin/settings/")
    text = html.unescape(answer.content.decode())
    for setting in SETTINGS:
        assert (f"<code>{setting.name}</code>" in text) is not setting.is_internal
        assert setting.is_internal or setting.kind.rule in text
    assert '<td class="hx-words">37</td>' in text
    assert "sesame" not in text and "set, and not shown" in text
    assert "](" not in text and "`" not in text, "Markdown"


def test_others_are_turned_away() -> None:
    assert client_of("sam", is_staff=True).get("/admin/settings/").status_code == 403
    assert client_of("mia").get("/admin/settings/").status_code == 302
