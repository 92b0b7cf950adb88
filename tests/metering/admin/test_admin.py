"""The operator's pages of accounts, keys, budgets, people and the ledger; an account's page with
everything of it."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pytest
import redis
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from fleet.live import reading as live
from fleet.services import catalogue_model_create
from inference.protocol.held import BROKE_WORKER
from inference.protocol.refusals import Refused, encode_field, refusals_key
from metering import services
from metering.actor import COMMAND
from metering.keys import api_key as keys
from metering.models import (
    Account,
    ApiKey,
    AuditEntry,
    Budget,
    LedgerEntry,
    Membership,
    UsageHour,
)
from metering.services import CreatedKey
from tests.cases import each_case
from tests.metering.callers import (
    TOKENS,
    errors,
    newest,
    page,
    person,
    post,
    recorded,
    staff,
    url,
    used,
)

pytestmark = pytest.mark.django_db


def row_of(kind: str, *, is_stored: bool = False, **fields: Any) -> dict[str, Any]:
    """The one row of an account's memberships or budgets; none without fields."""
    counts = {"TOTAL_FORMS": int(bool(fields)), "INITIAL_FORMS": int(is_stored)}
    numbered = {f"0-{name}": value for name, value in fields.items()}
    return {f"{kind}-{name}": value for name, value in {**counts, **numbered}.items()}


ACCOUNT_FORM = {
    "description": "",
    "weight": "1",
    "enabled": "on",
    **row_of("memberships"),
    **row_of("budgets"),
}


class TestAccounts:
    def test_create_and_delete(self, operator: Client) -> None:
        post(operator, "account", "add", name="ops", **ACCOUNT_FORM | {"weight": "3"})
        assert Account.objects.get(name="ops").weight == 3
        assert newest() == ("user:carol", "account.create", "ops")
        assert "lower-case slug" in errors(
            operator, "account", "add", name="No Slug", **ACCOUNT_FORM
        )
        post(operator, "account", "delete", "research", post="yes")
        assert newest() == ("user:carol", "account.delete", "research")
        assert operator.get(url("account", "delete", "shared")).status_code == 403
        form = ACCOUNT_FORM | row_of("budgets", unit="tokens", cap="12.5", window="balance")
        response = operator.post(url("account", "change", "ops"), form)
        assert "not a whole number of tokens" in response.text
        assert not Budget.objects.exists()

    def test_everything_of_it_on_one_page(self, operator: Client, account: Account) -> None:
        bob = User.objects.create_user("bob")
        change = ("account", "change", "research")
        amount = {"unit": "micro_usd", "cap": "$0.0123", "window": "day"}
        budget = row_of("budgets", **amount)
        member = row_of("memberships", user=bob.pk, role="owner")
        own = {"enabled": "", "requests_per_minute": "60"}
        post(operator, *change, **ACCOUNT_FORM | own | member | budget)
        account.refresh_from_db()
        assert (account.enabled, account.requests_per_minute) == (False, 60)
        assert Membership.objects.get().role == "owner"
        made = Budget.objects.get()
        assert (made.unit, made.cap, made.window) == ("micro_usd", 12_300, "day")
        actions = set(AuditEntry.objects.values_list("actor", "action"))
        assert {
            ("user:carol", action)
            for action in ("account.update", "membership.set", "budget.create")
        } <= actions
        Budget.objects.update(spent=300, reserved=2000)
        shown = page(operator, *change)
        for text in ("$0.0123", "$0.0003", "$0.002", "$0.01"):
            assert text in shown
        crumbs = [words.strip() for words in re.findall(r"leading-5 min-w-0[^>]*>([^<]*)<", shown)]
        assert crumbs[-2:] == ["Accounts", "research"], "as it is spelt"

        stored = {"is_stored": True, "id": made.pk, "account": "research"}
        budget = row_of("budgets", **amount | stored | {"cap": "1,000"})
        post(operator, *change, **ACCOUNT_FORM | budget)
        made.refresh_from_db()
        assert (made.cap, made.spent) == (1_000_000_000, 300)
        assert newest()[1] == "budget.update"
        post(operator, *change, **ACCOUNT_FORM | budget | {"budgets-0-DELETE": "on"})
        assert not Budget.objects.exists()
        assert newest()[1] == "budget.remove"
        stored |= {"id": Membership.objects.get().pk, "user": bob.pk, "role": "owner"}
        gone = row_of("memberships", **stored, DELETE="on")
        post(operator, *change, **ACCOUNT_FORM | gone)
        assert newest() == ("user:carol", "membership.remove", "research/bob")


class TestKeys:
    FORM = {"account": "research", "name": "ci", "scopes": ["inference"]}

    def test_create_shows_the_key_once(self, operator: Client) -> None:
        catalogue_model_create(actor=COMMAND, name="tiny", source="pypi:tiny")
        response = operator.post(url("apikey", "add"), self.FORM | {"model_names": ["tiny"]})
        assert response.status_code == 200
        assert "no-store" in response["Cache-Control"]
        key = re.search(r"hx-\w{10}-\w{32}", response.text)
        assert key is not None
        row = ApiKey.objects.get()
        assert keys.prefix_of(key[0]) == row.prefix
        assert (row.scopes, row.model_names) == (["inference"], ["tiny"])
        assert row.created_by == "user:carol"
        for text in (
            page(operator, "apikey"),
            page(operator, "apikey", "change", row.prefix),
            operator.get("/usage/audit").text,
            operator.get("/admin/").text,
        ):
            assert key[0] not in text
            assert row.digest not in text

    @each_case(
        ("changes", "message"),
        [
            ({"expires_at_0": "2020-01-01", "expires_at_1": "00:00"}, "have expired already"),
            ({"scopes": []}, "This field is required"),
        ],
    )
    def test_refused(self, operator: Client, changes: dict[str, Any], message: str) -> None:
        response = operator.post(url("apikey", "add"), self.FORM | changes)
        assert message in response.text
        assert not ApiKey.objects.exists()

    def test_what_can_be_changed(self, operator: Client, made: CreatedKey) -> None:
        key = made.row
        change = {"name": "renamed", "scopes": ["usage:read"]}
        fixed = {"account": "shared", "digest": "0" * 64}
        fixed |= {"revoked_at_0": "2026-01-01", "revoked_at_1": "00:00"}
        form = change | fixed | row_of("budgets")
        post(operator, "apikey", "change", key.prefix, **form)
        stored = ApiKey.objects.get()
        assert (stored.name, stored.scopes) == ("renamed", ["usage:read"])
        assert (stored.account_id, stored.digest) == ("research", key.digest)
        assert stored.revoked_at is None
        assert newest() == ("user:carol", "key.update", key.prefix)

    def test_revoke(self, operator: Client, made: CreatedKey) -> None:
        prefix = made.row.prefix
        form = {"action": "revoke_selected", "_selected_action": [prefix]}
        looker = staff("dave", "view_apikey")
        page(looker, "apikey", "change", prefix)
        looker.post(url("apikey", "changelist"), form | {"sure": "1"})
        assert looker.post(url("apikey", "add"), self.FORM).status_code == 403
        asked = operator.post(url("apikey", "changelist"), form).text
        assert "Revoke, for good" in asked and prefix in asked
        assert ApiKey.objects.get().revoked_at is None
        form["sure"] = "1"
        for words in ("Revoked", "already"):
            assert words in operator.post(url("apikey", "changelist"), form, follow=True).text
        assert ApiKey.objects.get().revoked_at is not None
        assert newest() == ("user:carol", "key.revoke", prefix)
        assert "revoked" in page(operator, "apikey")
        assert operator.get(url("apikey", "delete", prefix)).status_code == 403


class TestBudgets:
    def test_on_a_key(self, operator: Client, made: CreatedKey) -> None:
        prefix = made.row.prefix
        hour = {"unit": "micro_usd", "cap": "0.30", "window": "seconds", "window_s": "3600"}
        post(operator, "budget", "add", key=prefix, **hour)
        budget = Budget.objects.get()
        assert (budget.key_id, budget.cap, budget.window_s) == (prefix, 300_000, 3600)
        shown = page(operator, "budget")
        assert "$0.30" in shown and f"/requests/?key={prefix}" in shown
        assert "$0.30 of $0.30" in page(operator, "apikey")
        Budget.objects.create(account_id="research", unit="tokens", cap=1000, spent=450)
        assert "550 of 1,000 tokens" in page(operator, "account"), "what is left"
        post(operator, "budget", "change", budget.pk, unit="tokens", cap="0.50", window="day")
        budget.refresh_from_db()
        assert (budget.unit, budget.cap) == ("micro_usd", 500_000)
        assert (budget.window, budget.window_s) == ("day", None)
        assert newest()[1] == "budget.update"

    @each_case(
        ("account", "unit", "amount", "window", "message"),
        [
            ("", "tokens", "5", "day", "either an account"),
            ("research", "tokens", "0", "day", "positive whole number"),
            ("research", "tokens", "5", "seconds", "how many seconds"),
            ("research", "micro_usd", "x", "day", "not an amount"),
        ],
    )
    def test_refused(
        self, operator: Client, account: str, unit: str, amount: str, window: str, message: str
    ) -> None:
        form = {"account": account, "unit": unit, "cap": amount, "window": window}
        assert message in operator.post(url("budget", "add"), form).text
        assert not Budget.objects.exists()


class TestPeople:
    """Django's own pages of people, in the looks of the others, with their accounts."""

    def test_their_changes_are_audited_without_what_is_secret(self, operator: Client) -> None:
        mia = User.objects.create_user("mia", password="a long password")
        where = f"/admin/auth/user/{mia.pk}/password/"
        new = {"password1": "another long one", "password2": "another long one"}
        assert operator.post(where, new | {"usable_password": "true"}).status_code == 302
        for path in ("group/add/", "user/", "group/", "user/add/"):
            assert operator.get(f"/admin/auth/{path}").status_code == 200
        mia.refresh_from_db()
        assert mia.check_password("another long one")
        assert newest() == ("user:carol", "user.update", "mia")
        detail = str(AuditEntry.objects.get(action="user.update").detail)
        assert "another long one" not in detail and "password" in detail

    def test_their_rights_are_audited_with_both_values(
        self, operator: Client, account: Account
    ) -> None:
        mia = User.objects.create_user("mia")
        form = {"username": "mia", "is_active": "on", "is_staff": "on"}
        form |= {"date_joined_0": "2026-01-01", "date_joined_1": "12:00:00"}
        form |= row_of("memberships", account=account.name, role="member")
        response = operator.post(f"/admin/auth/user/{mia.pk}/change/", form)
        assert response.status_code == 302, response.context["errors"]
        entry = AuditEntry.objects.get(action="user.update")
        assert entry.detail["is_staff"] == [False, True]
        assert any(f"in {account.name}" in word for word in entry.detail["changed"])
        text = operator.get("/usage/audit?action=user.update").text
        assert "is_staff: false → true" in text
        assert f'href="?actor={quote(entry.actor, safe="")}"' in text

    @each_case("is_one", [True, False], ids=["one", "selected"])
    def test_their_removal_and_their_memberships_have_rows(
        self, operator: Client, account: Account, is_one: bool
    ) -> None:
        mia = User.objects.create_user("mia")
        Membership.objects.create(account=account, user=mia, role=Membership.Role.MEMBER)
        AuditEntry.objects.all().delete()
        chosen = {"action": "delete_selected", "_selected_action": mia.pk, "post": "yes"}
        where = f"{mia.pk}/delete/" if is_one else ""
        operator.post(f"/admin/auth/user/{where}", {"post": "yes"} if is_one else chosen)
        assert not User.objects.filter(username="mia").exists()
        assert set(AuditEntry.objects.values_list("actor", "action", "object_id")) == {
            ("user:carol", "membership.remove", f"{account.name}/mia"),
            ("user:carol", "user.delete", "mia"),
        }


def test_entries_and_hours_of_the_ledger_are_only_looked_at(operator: Client) -> None:
    amounts = {**dict.fromkeys(TOKENS, 5), "cost_micro_usd": 12_300}
    names = {"account": "research", "key": "hx-0123456789", "model": "tiny"}
    at = datetime(2026, 1, 1, 5, tzinfo=UTC)
    entry = LedgerEntry.objects.create(
        **amounts, **names, request_id="chatcmpl-1", at=at, duration_ms=5
    )
    UsageHour.objects.create(**amounts, **names, hour=at, requests=1)
    for noun in ("ledgerentry", "usagehour"):
        assert "$0.0123" in page(operator, noun)
        assert operator.get(url(noun, "add")).status_code == 403
    shown = page(operator, "ledgerentry", "change", entry.pk)
    for words in ("/requests/chatcmpl-1", "$0.0123"):
        assert words in shown
    for view in ("change", "delete"):
        assert operator.post(url("ledgerentry", view, entry.pk), {}).status_code == 403
    for query, is_there in (("chatcmpl-1", True), ("chatcmpl-2", False)):
        response = operator.get(url("ledgerentry", "changelist"), {"q": query})
        assert ("hx-0123456789" in response.text) is is_there


def shown(client: Client) -> str:
    return page(client, "account", "change", "research")


def test_an_accounts_page_is_its_home(operator: Client, account: Account) -> None:
    text = shown(operator)
    for words in ("It has no budget", "It has no key", "No requests in the last 30 days"):
        assert words in text
    assert "None in the last 24 hours" in text and "Redis does not answer" in text
    assert "Newest requests" not in page(operator, "account", "add")
    account.requests_per_minute = 60
    services.account_update(actor=COMMAND, account=account, changed_fields=["requests_per_minute"])
    key = services.key_create(actor=COMMAND, account=account, name="ci").row
    Budget.objects.create(account=account, unit="tokens", cap=1000, spent=400, reserved=50)
    Budget.objects.create(key=key, unit="micro_usd", cap=2_000_000, spent=500_000)
    used(key=key.prefix, requests=1_234, cost_micro_usd=2_500_000)
    used("other", "secret", key="hx-other")
    answered = recorded(key=key.prefix, neuron="beast")
    failed = recorded(status=503, outcome="failed", code="neuron_lost", message="It went away.")
    others = recorded(account="other", model="secret", status=503, outcome="failed", code="x")
    text = shown(operator)
    assert "550 tokens" in text and "$1.50 of $2.00" in text
    assert "Requests per minute</dt><dd>60" in text and "no limit" in text
    keys = text[text.index('id="account-keys-title"') :]
    assert f'href="/admin/metering/apikey/{key.prefix}/change/">ci</a>' in keys
    assert "1,234" in keys and "$2.50" in keys
    assert 'href="/admin/dashboard/model?name=tiny">tiny</a>' in text and "secret" not in text
    assert f'id="newest-{answered}"' in text and f'id="newest-{failed}"' in text
    failures = text[text.index('id="account-failures-title"') :]
    assert failed in failures and "It went away." in failures and answered not in failures
    assert others not in text
    for address in (
        "/requests/?account=research",
        "/usage/?account=research",
        "/admin/metering/ledgerentry/?account=research",
        "/usage/audit?object_id=research",
        "/admin/metering/apikey/add/?account=research",
    ):
        assert f'href="{address}"' in text
    assert "kind=account&amp;name=research" in text
    assert "nobody belongs to it." in text
    person("mia", account, role="member")
    user = User.objects.get(username="mia")
    text = shown(operator)
    assert f'<a href="/admin/auth/user/{user.pk}/change/">mia</a> (member)' in text
    assert re.search(r"<h1>.*>\s*research\s*</a>\s*</h1>", text, re.DOTALL), "as it is written"
    text = shown(staff("dave", "view_account"))
    assert 'id="account-title"' in text
    assert ">ci</a>" not in text and "$2.50" not in text and "Ledger</a>" not in text


def test_refusals_are_counted_by_code(
    operator: Client, account: Account, redis_db: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "redis_client", lambda: redis_db)
    key = refusals_key(time.time())
    for code, owner in (("insufficient_quota", "research"), ("rate_limit_exceeded", "other")):
        redis_db.hincrby(key, encode_field(Refused(code, owner)), 17)
    redis_db.hincrby(key, encode_field(Refused(BROKE_WORKER, "research", "hx-1")), 5)
    text = shown(operator)
    assert BROKE_WORKER not in text, "those have failed"
    assert 'code=insufficient_quota&amp;since=24h">17</a>' in text
    assert "rate_limit_exceeded" not in text


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
            text = shown(operator)
        assert text.count('class="hx-amount" data-label="requests"') <= 12
        return len(queries)

    assert grow(range(1)) == grow(range(1, 31))
    assert "19 more" in shown(operator)
