"""The operator's pages of accounts, keys, budgets, people and the ledger; what every page has
beside it, names that lead to their pages, and the card of first steps."""

from __future__ import annotations

import re
import uuid
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from django.utils.html import escape

from fleet import services as services_of_fleet
from fleet.dashboard.first_steps import snippets
from fleet.management.clients import Target
from fleet.models import CatalogueModel, Invitation, Neuron, Replica
from fleet.services import catalogue_model_create
from metering import api_keys as keys
from metering import services
from metering.audit import COMMAND
from metering.models import Account, ApiKey, AuditEntry, Budget, LedgerEntry, Membership
from tests.metering.callers import (
    TOKENS,
    newest,
    page,
    person,
    post,
    recorded,
    staff,
    text_of,
    url,
    used,
)

pytestmark = pytest.mark.django_db


def row_of(kind: str, *, is_stored: bool = False, **fields: Any) -> dict[str, Any]:
    """The one row of memberships or budgets below a form; none without fields."""
    counts = {"TOTAL_FORMS": int(bool(fields)), "INITIAL_FORMS": int(is_stored)}
    numbered = {f"0-{name}": value for name, value in fields.items()}
    return {f"{kind}-{name}": value for name, value in {**counts, **numbered}.items()}


NO_ROWS = row_of("memberships") | row_of("budgets")
ACCOUNT = {"description": "", "weight": "1", "enabled": "on", **NO_ROWS}
KEY = {"account": "research", "name": "ci", "scopes": ["inference"]}
BUDGET = {"unit": "tokens", "cap": "5", "window": "day"}


def test_a_form_reports_what_is_wrong(operator: Client, account: Account) -> None:
    expired = {"expires_at_0": "2020-01-01", "expires_at_1": "00:00"}
    of_account, half = (
        BUDGET | {"account": "research"},
        row_of("budgets", **BUDGET | {"cap": "1.5"}),
    )
    for noun, form, message in (
        ("account", ACCOUNT | {"name": "No Slug"}, "lower-case slug"),
        ("account", ACCOUNT | {"name": "a"} | half, "whole"),
        ("apikey", KEY | expired, "have expired"),
        ("apikey", KEY | {"scopes": []}, "This field is required"),
        ("budget", BUDGET, "either an account"),
        ("budget", of_account | {"cap": "0"}, "positive whole number"),
        ("budget", of_account | {"window": "seconds"}, "how many seconds"),
        ("budget", of_account | {"unit": "micro_usd", "cap": "x"}, "an amount"),
    ):
        assert message in operator.post(url(noun, "add"), form).text
    assert not ApiKey.objects.exists() and not Budget.objects.exists()
    assert not Account.objects.filter(name="a").exists()


def test_an_account_from_first_to_last(operator: Client, account: Account) -> None:
    post(operator, "account", "add", name="ops", **ACCOUNT | {"weight": "3"})
    assert Account.objects.get(name="ops").weight == 3
    assert newest() == ("user:carol", "account.create", "ops")
    change = ("account", "change", "research")
    budget = {"unit": "micro_usd", "cap": "$0.0123", "window": "day"}
    own = {"enabled": "", "requests_per_minute": "60"}
    member = row_of("memberships", user=User.objects.create_user("bob").pk, role="owner")
    post(operator, *change, **ACCOUNT | own | member | row_of("budgets", **budget))
    account.refresh_from_db()
    assert (account.enabled, account.requests_per_minute) == (False, 60)
    assert Membership.objects.get().role == "owner"
    made = Budget.objects.get()
    assert (made.unit, made.cap, made.window) == ("micro_usd", 12_300, "day")
    actions = set(AuditEntry.objects.values_list("actor", "action"))
    changes = ("account.update", "membership.set", "budget.create")
    assert {("user:carol", action) for action in changes} <= actions
    Budget.objects.update(spent=300, reserved=2000, window_ends_unix_s=1_900_000_000)
    assert "2030-03-17 17:46:40 UTC" in page(operator, "budget"), "the window's end"
    shown = page(operator, *change)
    assert [text for text in ("$0.0123", "$0.0003", "$0.002", "$0.01") if text not in shown] == []

    stored = {"is_stored": True, "id": made.pk, "account": "research"}
    row = row_of("budgets", **budget | stored | {"cap": "1,000"})
    post(operator, *change, **ACCOUNT | row)
    made.refresh_from_db()
    assert (made.cap, made.spent) == (1_000_000_000, 300)
    assert newest()[1] == "budget.update"
    post(operator, *change, **ACCOUNT | row | {"budgets-0-DELETE": "on"})
    assert not Budget.objects.exists() and newest()[1] == "budget.remove"
    stored |= {"id": Membership.objects.get().pk, "role": "owner"}
    ann = User.objects.create_user("ann")
    post(operator, *change, **ACCOUNT | row_of("memberships", **stored, user=ann.pk))
    assert Membership.objects.get().user == ann, "another person in its place"
    stored |= {"id": Membership.objects.get().pk, "user": ann.pk}
    post(operator, *change, **ACCOUNT | row_of("memberships", **stored, DELETE="on"))
    assert newest() == ("user:carol", "membership.remove", "research/ann")
    services.key_create(actor=COMMAND, account=Account.objects.get(name="ops"))
    for name in ("ops", "shared"):
        assert operator.get(url("account", "delete", name)).status_code == 403
    post(operator, "account", "delete", "research", post="yes")
    assert newest() == ("user:carol", "account.delete", "research")


def test_a_key_is_shown_once_and_revoked_for_good(operator: Client, account: Account) -> None:
    catalogue_model_create(actor=COMMAND, name="tiny", source="pypi:tiny")
    form = KEY | {"model_names": ["tiny"], "tokens_per_minute": "7"}
    response = operator.post(url("apikey", "add"), form)
    assert response.status_code == 200 and "no-store" in response["Cache-Control"]
    key = re.search(r"hx-\w{10}-\w{32}", response.text)
    assert key is not None
    row = ApiKey.objects.get()
    assert keys.prefix_of(key[0]) == row.prefix
    assert (row.scopes, row.model_names) == (["inference"], ["tiny"])
    assert (row.created_by, row.tokens_per_minute) == ("user:carol", 7)
    texts = [page(operator, "apikey"), page(operator, "apikey", "change", row.prefix)]
    texts += [operator.get(path).text for path in ("/usage/audit", "/admin/")]
    assert not any(key[0] in text or row.digest in text for text in texts)

    fixed = {"account": "shared", "digest": "0" * 64}
    fixed |= {"revoked_at_0": "2026-01-01", "revoked_at_1": "00:00"}
    form = {"name": "renamed", "scopes": ["usage:read"], **fixed, **row_of("budgets")}
    post(operator, "apikey", "change", row.prefix, **form)
    stored = ApiKey.objects.get()
    assert (stored.name, stored.scopes) == ("renamed", ["usage:read"])
    assert (stored.account_id, stored.digest, stored.revoked_at) == ("research", row.digest, None)
    assert newest() == ("user:carol", "key.update", row.prefix)

    where = url("apikey", "changelist")
    form = {"action": "revoke_selected", "_selected_action": [row.prefix]}
    looker = staff("dave", "view_apikey")
    page(looker, "apikey", "change", row.prefix)
    looker.post(where, form | {"sure": "1"})
    assert looker.post(url("apikey", "add"), KEY).status_code == 403
    asked = operator.post(where, form).text
    assert "Revoke, for good" in asked and row.prefix in asked
    assert ApiKey.objects.get().revoked_at is None
    for words in ("Revoked", "already"):
        assert words in operator.post(where, form | {"sure": "1"}, follow=True).text
    assert ApiKey.objects.get().revoked_at is not None
    assert newest() == ("user:carol", "key.revoke", row.prefix)
    assert "revoked" in page(operator, "apikey")
    assert operator.get(url("apikey", "delete", row.prefix)).status_code == 403
    changed = operator.post(url("apikey", "change", row.prefix), KEY | row_of("budgets"))
    assert changed.status_code == 403


def test_changes_of_people_are_audited_without_what_is_secret(
    operator: Client, account: Account
) -> None:
    mia = User.objects.create_user("mia", password="a long password")
    for path in ("group/add/", "user/", "group/", "user/add/"):
        assert operator.get(f"/admin/auth/{path}").status_code == 200
    new = {"password1": "another long one", "password2": "another long one"}
    where = f"/admin/auth/user/{mia.pk}"
    assert operator.post(f"{where}/password/", new | {"usable_password": "true"}).status_code == 302
    mia.refresh_from_db()
    assert mia.check_password("another long one")
    assert newest() == ("user:carol", "user.update", "mia")
    detail = str(AuditEntry.objects.get(action="user.update").detail)
    assert "another long one" not in detail and "password" in detail

    form = {"username": "mia", "is_active": "on", "is_staff": "on"}
    form |= {"date_joined_0": "2026-01-01", "date_joined_1": "12:00:00"}
    member = {"account": account.name, "role": "member"}
    response = operator.post(f"{where}/change/", form | row_of("memberships", **member))
    assert response.status_code == 302
    entry = AuditEntry.objects.filter(action="user.update").first()
    assert entry is not None and entry.detail["is_staff"] == [False, True]
    assert any(f"in {account.name}" in words for words in entry.detail["changed"])
    text = operator.get("/usage/audit?action=user.update").text
    assert "is_staff: false → true" in text
    assert f'href="?actor={quote(entry.actor, safe="")}"' in text
    stored = {"is_stored": True, "id": Membership.objects.get().pk, "user": mia.pk}
    moved = row_of("memberships", **member | stored | {"account": "shared"})
    assert operator.post(f"{where}/change/", form | moved).status_code == 302
    assert Membership.objects.get().account_id == "shared", "and no longer in the other"


def test_a_removed_person_and_the_memberships_have_rows(operator: Client, account: Account) -> None:
    for is_one in (True, False):
        mia = User.objects.create_user("mia")
        Membership.objects.create(account=account, user=mia, role=Membership.Role.MEMBER)
        AuditEntry.objects.all().delete()
        chosen = {"action": "delete_selected", "_selected_action": mia.pk} if not is_one else {}
        where = f"{mia.pk}/delete/" if is_one else ""
        operator.post(f"/admin/auth/user/{where}", {"post": "yes", **chosen})
        assert set(AuditEntry.objects.values_list("actor", "action", "object_id")) == {
            ("user:carol", "membership.remove", f"{account.name}/mia"),
            ("user:carol", "user.delete", "mia"),
        }


def test_entries_of_the_ledger_are_only_looked_at(operator: Client) -> None:
    facts = {**dict.fromkeys(TOKENS, 5), "cost_micro_usd": 12_300, "duration_ms": 5}
    facts |= {"account": "research", "key": "hx-0123456789", "model": "tiny"}
    at = datetime(2026, 1, 1, 5, tzinfo=UTC)
    entry = LedgerEntry.objects.create(request_id="chatcmpl-1", at=at, **facts)
    shown = page(operator, "ledgerentry", "change", entry.pk)
    assert "/requests/chatcmpl-1" in shown and "$0.0123" in shown
    for view in ("change", "delete"):
        assert operator.post(url("ledgerentry", view, entry.pk), {}).status_code == 403
    for query, is_there in (("chatcmpl-1", True), ("chatcmpl-2", False)):
        response = operator.get(url("ledgerentry", "changelist"), {"q": query})
        assert ("hx-0123456789" in response.text) is is_there


def test_many_rows_make_no_more_queries(operator: Client, account: Account) -> None:
    def grow(indices: range) -> int:
        for index in indices:
            prefix = f"hx-{index:010}"
            ApiKey.objects.create(prefix=prefix, account=account, name=f"k{index}", digest="x")
            Budget.objects.create(key_id=prefix, unit="tokens", cap=1000)
            used(key=prefix, model=f"m{index}")
            recorded(key=prefix)
            recorded(key=prefix, status=503, outcome="failed", code="neuron_lost")
        with CaptureQueriesContext(connection) as queries:
            text = page(operator, "account", "change", "research")
        assert text.count('class="hx-amount" data-label="requests"') <= 12
        assert ("19 more" in text) is (len(indices) > 1)
        return len(queries)

    assert grow(range(1)) == grow(range(1, 31))
    client = staff("dave", "view_account", "view_budget")
    text = page(client, "account", "change", "research")
    assert 'id="account-title"' in text and "k1</a>" not in text and "Ledger</a>" not in text


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
    mia = person("mia", account, role="member")
    for reader, path in ((mia, "/usage/"), (client, "/usage/"), (Client(), "/docs")):
        links = re.findall(r'<a href="([^"]+)" class="flex h-\[38px\]', text_of(reader, path))
        assert [one for one in links if reader.get(one).status_code != 200] == []
        assert bool(links) is (path == "/usage/")
        assert ("/admin/fleet/cataloguemodel/" in links) is (reader is client)
    assert 'id="search"' not in text_of(mia, "/usage/")


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
FIRST_KEY = "/admin/dashboard/first-key"
HIDE = "/admin/dashboard/hide-first-steps"
BY_HTMX = {"hx-request": "true"}


def test_steps_are_ticked_until_none_is_left(operator: Client, account: Account) -> None:
    def num_done(words: str = "Send a request") -> int:
        text = text_of(operator, CARD)
        assert words in text
        return text.count(">done<")

    assert 'id="first-steps"' in operator.get("/admin/").text and num_done("Make a key") == 0
    services.key_create(actor=COMMAND, account=account, name="playground", scopes=["inference"])
    gone = services.key_create(actor=COMMAND, account=account).row
    services.key_revoke(actor=COMMAND, key=gone)
    assert num_done() == 0, "those do not count"
    services.key_create(actor=COMMAND, account=account)
    recorded(status=503, outcome="failed", code="neuron_lost")
    assert num_done() == 1
    request_id = recorded()
    assert num_done(f'href="/requests/{request_id}"') == 2
    Invitation.objects.create(neuron_name="attic")
    assert num_done("First request received") == 3
    User.objects.create_user("mia")
    assert text_of(operator, CARD).strip() == ""
    assert 'id="first-steps"' not in operator.get("/admin/").text
    User.objects.get(username="mia").delete()
    assert text_of(operator, CARD).strip() and operator.get(HIDE).status_code == 405
    assert operator.post(HIDE, headers=BY_HTMX).text == text_of(operator, CARD).strip() == ""
    assert operator.post(HIDE)["Location"] == "/admin/"


def test_a_first_key_has_snippets_and_its_account(operator: Client, account: Account) -> None:
    CatalogueModel.objects.create(name="tiny", source="pypi:tiny")
    response = operator.post(FIRST_KEY, {"account": "research"}, headers=BY_HTMX)
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
        assert reader.post(FIRST_KEY, {"account": name}).status_code == status
    ApiKey.objects.all().delete()
    CatalogueModel.objects.all().delete()
    account.delete()
    assert "made with it" in text_of(operator, CARD)
    text = operator.post(FIRST_KEY, headers=BY_HTMX).text
    assert ApiKey.objects.get().account_id == "team" and "has no model yet" in text
    refused = operator.post(FIRST_KEY, {"account": "No Slug"}, headers=BY_HTMX).text
    assert "lower-case slug" in refused and ApiKey.objects.count() == 1
