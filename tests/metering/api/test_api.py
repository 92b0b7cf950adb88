"""``/api/me`` and ``/api/usage``, and the API's refusals: to keys, people and anonymous callers."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError
from django.test import Client
from django.utils import timezone

from metering import api_keys as keys
from metering import services
from metering.audit import COMMAND
from metering.models import Account, ApiKey, AuditEntry, Budget, UsageHour
from metering.services import CreatedKey
from tests.cases import each_case
from tests.fleet.api.api_support import Api, key_api
from tests.metering.callers import get, newest, ok, person, refused, staff

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("listens_elsewhere")]

PERIOD = "from=2026-01-01&to=2026-01-02"
INVALID = (401, "invalid_api_key")


def test_me_as_a_key_with_its_budgets(client: Client, account: Account, made: CreatedKey) -> None:
    shown = ok(client, "me", made.key)
    whose = {"account": "research", "key": made.row.prefix, "scopes": ["inference", "usage:read"]}
    no_one = {"user": None, "is_anonymous": False, "models": None, "budgets": []}
    assert shown | whose | no_one == shown == ok(client, "me", **{"x-api-key": made.key})
    month = Budget(account=account, unit="micro_usd", cap=1000, window="month")
    services.budget_create(actor=COMMAND, budget=month)
    minute = Budget(key=made.row, unit="tokens", cap=50, window="seconds", window_s=60)
    services.budget_create(actor=COMMAND, budget=minute)
    before = timezone.now()
    soon = int((before + timedelta(hours=1)).timestamp())
    budgets = Budget.objects.filter(unit="tokens")
    budgets.update(spent=7, reserved=3, window_ends_unix_s=soon)
    of_the_key, of_the_account = ok(client, "me", made.key)["budgets"]
    ends_at = datetime.fromtimestamp(soon, UTC).isoformat()
    expected = {"on": "key", "owner": made.row.prefix, "unit": "tokens", "window": "seconds"}
    expected |= {"cap": 50, "spent": 7, "reserved": 3, "left": 40, "window_s": 60}
    assert of_the_key | expected | {"window_ends_at": ends_at} == of_the_key
    assert (of_the_account["on"], of_the_account["owner"]) == ("account", "research")
    assert of_the_account["window_ends_at"] > before.isoformat()
    budgets.update(window_ends_unix_s=1000)
    over = {"spent": 0, "reserved": 3, "left": 47, "window_ends_at": None}
    of_the_key, _ = ok(client, "me", made.key)["budgets"]
    assert of_the_key | over == of_the_key, "its window is over"


def test_me_as_a_person_or_without_a_key_of_ones_own(
    client: Client, account: Account, settings: Any
) -> None:
    alice = person("alice", account, "viewer")
    shown = ok(alice, "me")
    assert (shown["user"], shown["account"], shown["key"]) == ("alice", "research", None)
    assert shown["accounts"] == [{"name": "research", "role": "viewer"}]
    assert ok(alice, "me", accept="text/html,*/*;q=0.8") == shown, "in their browser too"
    other = services.account_create(actor=COMMAND, name="ops")
    user = User.objects.get(username="alice")
    services.membership_set(actor=COMMAND, account=other, user=user, role="owner")
    assert ok(alice, "me")["account"] == "ops"
    assert ok(alice, "me?account=research")["scopes"] == ["usage:read"]
    assert refused(alice, "me?account=shared") == (403, "account_not_allowed")
    shown = ok(person("eve"), "me")
    assert (shown["user"], shown["account"], shown["accounts"]) == ("eve", None, [])
    before = settings.CONFIG
    settings.CONFIG = replace(before, listen_host="127.0.0.1")
    shown = ok(client, "me")
    assert (shown["account"], shown["is_anonymous"]) == ("anonymous", True)
    assert refused(client, "me", "hx-cut") == INVALID
    assert refused(client, "usage") == (403, "insufficient_scope")
    for config in (before, settings.CONFIG):
        settings.CONFIG = replace(config, api_key="a shared key")
        assert ok(client, "me", "a shared key")["account"] == "shared"
        assert refused(client, "me", "another") == refused(client, "me") == INVALID


def test_who_holds_no_valid_key(
    client: Client, account: Account, made: CreatedKey, settings: Any
) -> None:
    def key(**options: Any) -> CreatedKey:
        return services.key_create(actor=COMMAND, account=account, **options)

    revoked, expired = key(), key(expires_at=timezone.now() + timedelta(days=1))
    services.key_revoke(actor=COMMAND, key=revoked.row)
    ApiKey.objects.filter(pk=expired.row.pk).update(expires_at=timezone.now())
    forged = made.key[:-32] + "a" * 32
    for word in ("sk-placeholder", keys.make_key().key, forged, revoked.key, expired.key):
        assert refused(client, "me", word) == INVALID
    for path in ("me", "usage", "nothing/here"):
        assert refused(client, path) == INVALID
    narrow = key(scopes=["inference"])
    assert ok(client, "me", narrow.key)["scopes"] == ["inference"]
    assert refused(client, "usage", narrow.key) == (403, "insufficient_scope")
    session = person("alice", account)
    account.enabled = False
    services.account_update(actor=COMMAND, account=account, changed_fields=["enabled"])
    assert refused(client, "me", made.key) == INVALID, "its account is disabled"
    assert ok(session, "me")["account"] is None
    settings.CONFIG = replace(settings.CONFIG, allow_anonymous=True)
    for path in ("me", "overview", "keys"):
        assert refused(client, path, "sk-placeholder") == INVALID


def test_errors_show_nothing(client: Client, made: CreatedKey, monkeypatch: Any) -> None:
    for error, status, code in (
        (OperationalError("gone, with secrets"), 503, "database_unavailable"),
        (RuntimeError("our own, with secrets"), 500, "internal_error"),
    ):
        with monkeypatch.context() as patch:
            fail = Mock(side_effect=error)
            patch.setattr("metering.models.Budget.objects.filter", fail)
            response = get(client, "me", made.key)
        assert (response.status_code, response.json()["code"]) == (status, code)
        assert response.headers.get("Retry-After") == ("1" if status == 503 else None)
        assert b"secrets" not in response.content


def test_parameters(client: Client, made: CreatedKey) -> None:
    assert get(client, "usage?format=xml", made.key).status_code == 404
    assert get(client, "usage", made.key, accept="application/xml").status_code == 406
    for query, param in (
        ("by=week", "by"),
        ("from=soon", "from"),
        ("from=2026-01-02&to=2026-01-01", "from"),
        ("limit=0", "limit"),
        ("limit=x", "limit"),
        ("offset=-1", "offset"),
        ("offset=99999999999999999999", "offset"),
        ("group_by=day", "group_by"),
    ):
        code = "unknown_parameter" if param == "group_by" else "invalid_value"
        assert refused(client, f"usage?{query}", made.key) == (400, code)
        assert get(client, f"usage?{query}", made.key).json()["param"] == param


@pytest.fixture
def hours(account: Account, made: CreatedKey) -> None:
    """Writes hours of the key, of another key of its account, and of another account."""
    at, own = datetime(2026, 1, 1, 5, tzinfo=UTC), made.row.prefix
    for owner, key, model, number in (
        *(("research", own, "tiny", 1), ("research", own, "large", 2)),
        *(("research", "hx-another000", "tiny", 4), ("shared", "", "tiny", 8)),
    ):
        whose = {"account": owner, "key": key, "model": model}
        UsageHour.objects.create(hour=at, requests=number, cost_micro_usd=number, **whose)


def total(client: Client, query: str = "", key: str | None = None) -> int:
    return int(ok(client, f"usage?{PERIOD}{query}", key)["total"]["requests"])


@pytest.mark.usefixtures("hours")
def test_a_key_sees_its_own_usage_in_pages_and_as_csv(client: Client, made: CreatedKey) -> None:
    shown = ok(client, f"usage?by=model&{PERIOD}", made.key)
    assert [(row["model"], row["requests"]) for row in shown["data"]] == [("large", 2), ("tiny", 1)]
    assert (shown["by"], shown["from"], shown["to"]) == ("model", "2026-01-01", "2026-01-02")
    assert shown["total"]["cost_micro_usd"] == 3
    assert total(client, "&account=research", made.key) == 3
    assert total(client, f"&key={made.row.prefix}", made.key) == 3
    for query, code in (
        ("account=shared", "account_not_allowed"),
        ("account=nowhere", "account_not_allowed"),
        ("key=hx-another000", "key_not_allowed"),
    ):
        assert refused(client, f"usage?{query}", made.key) == (403, code)
    first = ok(client, f"usage?by=model&limit=1&{PERIOD}", made.key)
    assert (first["num_rows"], first["total"]["requests"]) == (2, 3), "of all pages"
    second = ok(client, first["next"].removeprefix("http://testserver/api/"), made.key)
    assert (first["data"] + second["data"], second["next"]) == (shown["data"], None)
    shown = ok(client, "usage", made.key)
    since, until = (datetime.fromisoformat(shown[name]) for name in ("from", "to"))
    assert (until - since, shown["data"]) == (timedelta(days=29), []), "thirty days by default"
    for path, headers in (("usage?format=csv&", {}), ("usage?", {"accept": "text/csv"})):
        response = get(client, f"{path}by=model&{PERIOD}", made.key, **headers)
        assert response["Content-Type"] == "text/csv; charset=utf-8"
        rows = list(csv.DictReader(io.StringIO(response.content.decode())))
        assert [(row["model"], row["requests"]) for row in rows] == [("large", "2"), ("tiny", "1")]
        refusal = get(client, path, **headers)
        assert (refusal.status_code, json.loads(refusal.content)["code"]) == INVALID


@pytest.mark.usefixtures("hours")
def test_people_see_the_usage_of_their_accounts_and_staff_all(
    client: Client, account: Account, made: CreatedKey, settings: Any
) -> None:
    for role in ("owner", "member", "viewer"):
        asker = person(role, account, role)
        assert (total(asker), total(asker, f"&key={made.row.prefix}")) == (7, 3)
        assert refused(asker, "usage?account=shared") == (403, "account_not_allowed")
    stranger, root = person("eve"), person("root", is_staff=True)
    assert total(stranger) == 0
    assert refused(stranger, "usage?account=research") == (403, "account_not_allowed")
    assert (total(root), total(root, "&account=shared")) == (15, 8)
    assert refused(root, "usage?account=nowhere") == (404, "account_not_found")
    settings.CONFIG = replace(settings.CONFIG, api_key="a shared key")
    assert total(client, key="a shared key") == 8


READ, WRITE = "accounts:read", "accounts:write"


@pytest.fixture
def api() -> Api:
    return key_api(READ, WRITE)


def test_who_may_make_and_change_keys(api: Api, account: Account) -> None:
    """Keys need the scope of what they do and give none that they have not; people need the
    permissions that the admin asks for."""
    body = {"account": "research"}
    refused = api.post("keys", body, 403)  # the default's scopes are inference and usage:read
    assert (refused["code"], refused["param"]) == ("insufficient_scope", "scopes")
    made = api.post("keys", body | {"scopes": [READ]}, 201)
    refused = api.patch(f"keys/{made['prefix']}", {"scopes": [READ, "fleet:write"]}, 403)
    assert "fleet:write" in refused["detail"]
    assert ApiKey.objects.get(pk=made["prefix"]).scopes == [READ]
    reader, fleet = key_api(READ), key_api("fleet:read", "fleet:write")
    for path in ("accounts", "members", "keys", "budgets"):
        reader.get(path)
        assert WRITE in fleet.post(path, {}, 403)["detail"]
        fleet.get(path, 403)
    assert reader.post("accounts", {"name": "x"}, 403)["code"] == "insufficient_scope"
    assert staff("nobody").get("/api/keys").status_code == 403
    path = f"keys/{made['prefix']}"
    assert made["key"].startswith(made["prefix"]) and "key" not in api.get(path)
    assert api.patch(path, {"expires_at": "2999-01-01"})["expires_at"] == "2999-01-01T00:00:00Z"
    assert api.delete(f"{path}?dry_run=true", 200)["would"][0]["action"] == "key.revoke"
    assert api.get("keys?account=research&status=active")["num_rows"] == 1
    for _ in range(2):
        api.delete(path)
    assert api.get("keys?account=research&status=active,expired")["num_rows"] == 0
    assert api.patch(path, {"name": "again"}, 409)["code"] == "key_revoked"
    client = staff("clerk", "view_apikey", "add_apikey")
    assert client.get("/api/keys").status_code == 200
    wanted = {"account": "research", "scopes": ["fleet:write"]}
    answer = client.post("/api/keys", wanted, content_type="application/json")
    assert (answer.status_code, answer["Cache-Control"]) == (201, "no-store")
    path = f"/api/keys/{answer.json()['prefix']}"
    assert client.delete(path).status_code == 403  # that changes a key
    assert newest()[:2] == ("user:clerk", "key.create")


BAD, UNKNOWN = (400, "invalid_value"), (400, "unknown_parameter")
KEY = {"account": "research", "scopes": [READ]}
CAP = {"account": "research", "unit": "tokens", "cap": 0}
MEMBER = {"account": "research", "user": "nobody", "role": "owner"}


@each_case(
    ("method", "path", "body", "refusal", "param"),
    [
        ("post", "accounts", {}, BAD, "name"),
        ("post", "accounts", {"name": "x", "weight": "3"}, BAD, "weight"),
        ("post", "accounts", {"name": "x", "wieght": 3}, UNKNOWN, "wieght"),
        ("patch", "accounts/research", {"name": "other"}, UNKNOWN, "name"),
        ("patch", "accounts/research", {}, (400, "missing_required_parameter"), None),
        ("patch", "accounts/nobody", {"weight": 1}, (404, "account_not_found"), "account"),
        ("post", "members", {"account": "research"}, BAD, "user"),
        ("post", "members", MEMBER, (404, "user_not_found"), "user"),
        ("patch", "members/research/x", {"role": "owner"}, (404, "member_not_found"), "member"),
        ("post", "keys", KEY | {"account": "nobody"}, (404, "account_not_found"), "account"),
        ("post", "keys", KEY | {"models": ["none"]}, BAD, "models"),
        ("post", "keys", KEY | {"expires_at": "soon"}, BAD, "expires_at"),
        ("post", "keys", KEY | {"budgets": [{"unit": "tokens"}]}, BAD, "cap"),
        ("post", "keys", KEY | {"budgets": [{"cup": 1}]}, UNKNOWN, "budgets"),
        ("post", "budgets", {"unit": "tokens", "cap": 1}, BAD, "account"),
        ("post", "budgets", CAP, BAD, "cap"),
        ("get", "keys?status=lost", None, BAD, "status"),
        ("delete", "accounts/research?dry_run=1", None, BAD, "dry_run"),
    ],
)
def test_operators_calls_that_are_refused(
    api: Api, account: Account, method: str, path: str, body: Any, refusal: Any, param: str | None
) -> None:
    before = AuditEntry.objects.count()
    status, code = refusal
    args = (path,) if body is None else (path, body)
    refused = getattr(api, method)(*args, status=status)
    assert (refused["code"], refused["param"]) == (code, param)
    assert AuditEntry.objects.count() == before
