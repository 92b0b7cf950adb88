"""Accounts, members, keys and budgets over REST: the admin's services, rights and audit."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User

from metering.models import Account, ApiKey, AuditEntry, Membership
from tests.cases import each_case
from tests.fleet.api.api_support import Api, key_api
from tests.metering.callers import newest, staff

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("listens_elsewhere")]

READ, WRITE = "accounts:read", "accounts:write"


@pytest.fixture
def api() -> Api:
    return key_api(READ, WRITE)


def actions() -> list[str]:
    return list(AuditEntry.objects.order_by("id").values_list("action", flat=True))


def test_rows_are_made_changed_and_removed(api: Api, account: Account) -> None:
    """The commands' tests do so with each noun, over the same operations."""
    User.objects.create_user("alice")
    body = {"account": "research", "user": "alice", "role": "viewer"}
    made = api.post("members", body, 201)
    assert made == {"id": "research/alice", **body}
    assert api.patch("members/research/alice", {"role": "owner"})["role"] == "owner"
    assert api.get("members?account=research&role=owner")["num_rows"] == 1
    shown = api.get("accounts/research")
    assert (shown["members"], shown["people"], shown["keys"]) == ([made | {"role": "owner"}], 1, 0)
    assert api.delete("members/research/alice?dry_run=true", 200)["would"]
    assert Membership.objects.exists()
    api.delete("members/research/alice")
    assert not Membership.objects.exists()
    last = AuditEntry.objects.order_by("id").last()
    assert last is not None and last.actor.startswith("key:hx-")
    assert api.get("budgets?key=hx-nobodys000")["num_rows"] == 0


def test_a_key_from_first_to_last(api: Api, account: Account) -> None:
    budgets = [{"unit": "tokens", "cap": 1000, "window": "seconds", "window_s": 60}]
    body = {"account": "research", "name": "ci", "scopes": [READ], "budgets": budgets}
    made = api.post("keys", body, 201)
    path = f"keys/{made['prefix']}"
    assert made["key"].startswith(made["prefix"])
    assert [(one["cap"], one["left"]) for one in made["budgets"]] == [(1000, 1000)]
    assert "key" not in api.get(path)
    assert (made["names_end_user"], made["may_leave_network"]) == (False, True)
    changes = {"name": "nightly", "max_concurrent": 2, "names_end_user": True}
    changed = api.patch(path, changes | {"may_leave_network": False, "expires_at": "2999-01-01"})
    assert {name: changed[name] for name in changes} == changes
    assert changed["may_leave_network"] is False
    assert changed["expires_at"] == "2999-01-01T00:00:00Z"
    inside = api.post("keys", body | {"may_leave_network": False}, 201)
    assert inside["may_leave_network"] is False
    api.delete(f"keys/{inside['prefix']}")
    assert api.get("keys?account=research&status=active")["num_rows"] == 1
    assert api.delete(f"{path}?dry_run=true", 200)["would"][0]["action"] == "key.revoke"
    assert ApiKey.objects.get(pk=made["prefix"]).revoked_at is None
    api.delete(path)
    api.delete(path)
    assert api.get(path)["status"] == "revoked"
    assert api.get("keys?account=research&status=active,expired")["num_rows"] == 0
    assert api.patch(path, {"name": "again"}, 409)["code"] == "key_revoked"


def test_a_key_grants_no_scope_that_it_has_not(api: Api, account: Account) -> None:
    body = {"account": "research"}
    refused = api.post("keys", body, 403)  # the default's scopes are inference and usage:read
    assert (refused["code"], refused["param"]) == ("insufficient_scope", "scopes")
    made = api.post("keys", body | {"scopes": [READ]}, 201)
    refused = api.patch(f"keys/{made['prefix']}", {"scopes": [READ, "fleet:write"]}, 403)
    assert "fleet:write" in refused["detail"]
    assert ApiKey.objects.get(pk=made["prefix"]).scopes == [READ]


BAD, UNKNOWN = (400, "invalid_value"), (400, "unknown_parameter")
KEY = {"account": "research", "scopes": [READ]}
CAP = {"account": "research", "unit": "tokens", "cap": 0}
MEMBER = {"account": "research", "user": "nobody", "role": "owner"}


@each_case(
    ("method", "path", "body", "refusal", "param"),
    [
        ("post", "accounts", {}, BAD, "name"),
        ("post", "accounts", {"name": "No Slug"}, BAD, "name"),
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
        ("patch", "keys/hx-nobodys000", {"name": "x"}, (404, "key_not_found"), "key"),
        ("post", "budgets", {"unit": "tokens", "cap": 1}, BAD, "account"),
        ("post", "budgets", CAP, BAD, "cap"),
        ("patch", "budgets/0", {"cap": 1}, (404, "budget_not_found"), "budget"),
        ("get", "keys?status=lost", None, BAD, "status"),
        ("delete", "accounts/research?dry_run=1", None, BAD, "dry_run"),
    ],
)
def test_refused(
    api: Api,
    account: Account,
    method: str,
    path: str,
    body: Any,
    refusal: tuple[int, str],
    param: str | None,
) -> None:
    before = actions()
    status, code = refusal
    args = (path,) if body is None else (path, body)
    refused = getattr(api, method)(*args, status=status)
    assert (refused["code"], refused["param"]) == (code, param)
    assert actions() == before


def test_keys_need_the_scope_of_what_they_do() -> None:
    reader, fleet = key_api(READ), key_api("fleet:read", "fleet:write")
    for path in ("accounts", "members", "keys", "budgets"):
        reader.get(path)
        assert WRITE in fleet.post(path, {}, 403)["detail"]
        fleet.get(path, 403)
    assert reader.post("accounts", {"name": "x"}, 403)["code"] == "insufficient_scope"


def test_people_need_the_permissions_that_the_admin_asks_for(account: Account) -> None:
    assert staff("nobody").get("/api/keys").status_code == 403
    client = staff("clerk", "view_apikey", "add_apikey")
    assert client.get("/api/keys").status_code == 200
    body = {"account": "research", "scopes": ["fleet:write"]}
    made = client.post("/api/keys", body, content_type="application/json")
    assert (made.status_code, made["Cache-Control"]) == (201, "no-store")
    path = f"/api/keys/{made.json()['prefix']}"
    assert client.delete(path).status_code == 403  # that changes a key
    assert newest()[:2] == ("user:clerk", "key.create")
