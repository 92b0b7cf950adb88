"""Writes to accounts, members, keys and budgets: checks, audit entries, gateways' revisions. What
the REST API and the commands show of them is tested there."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.utils import timezone

from fleet import services as fleet_services
from metering import api_keys as keys
from metering import services
from metering.api_keys import KeyRecord
from metering.audit import user_actor
from metering.errors import MeteringValueError
from metering.key_directory import DatabaseKeyStore
from metering.models import Account, ApiKey, AuditEntry, Budget, Membership, Revision
from metering.principal import BUILT_IN_ACCOUNTS, RateLimits, Scope
from metering.services import CreatedKey

pytestmark = pytest.mark.django_db

ALICE = user_actor("alice")
CAP = {"unit": "tokens", "cap": 5}


def revision() -> int:
    return Revision.objects.get().number


def entries() -> list[tuple[str, str, str]]:
    return [
        (entry.actor, entry.action, entry.object_id) for entry in AuditEntry.objects.order_by("id")
    ]


def refused(field: str, call: Callable[..., Any], **arguments: Any) -> str:
    """The message. Nothing was written, audited or published."""
    before = (entries(), revision())
    with pytest.raises(MeteringValueError) as caught:
        call(**arguments)
    assert caught.value.field == field
    assert (entries(), revision()) == before
    return str(caught.value)


def stored(key: ApiKey) -> KeyRecord:
    return DatabaseKeyStore().keys(key.prefix)[key.prefix]


def detail() -> dict[str, Any]:
    entry = AuditEntry.objects.first()
    assert entry is not None
    return dict(entry.detail)


def test_an_account_is_made_changed_and_deleted_with_what_is_its_own(account: Account) -> None:
    before = revision()
    ops = services.account_create(
        actor=ALICE, name="ops", weight=services.MAX_WEIGHT, requests_per_minute=60
    )
    assert (revision(), entries()[-1]) == (before + 1, ("user:alice", "account.create", "ops"))
    assert detail() == {"weight": 1000, "enabled": True, "requests_per_minute": 60}
    change = {"actor": ALICE, "account": ops}
    services.account_update(changed_fields=["weight"], **change)
    assert revision() == before + 1, "nothing has changed"
    ops.weight, ops.enabled = 5, False
    services.account_update(changed_fields=["weight", "enabled", "description"], **change)
    assert (revision(), detail()) == (before + 2, {"weight": [1000, 5], "enabled": [True, False]})
    refused("name", services.account_update, changed_fields=["name"], **change)
    bob = User.objects.create(username="bob")
    services.membership_set(actor=ALICE, account=ops, user=bob, role="member")
    budget = services.budget_create(actor=ALICE, budget=Budget(account=ops, **CAP))
    AuditEntry.objects.all().delete()
    services.account_delete(**change)
    assert set(entries()) == {
        ("user:alice", "budget.remove", f"ops/{budget.pk}"),
        ("user:alice", "membership.remove", "ops/bob"),
        ("user:alice", "account.delete", "ops"),
    }, "what goes with it has rows of its own"
    assert not Account.objects.filter(name="ops").exists()
    services.key_create(actor=ALICE, account=account)
    for name in (*BUILT_IN_ACCOUNTS, "research"):
        kept = Account.objects.get(name=name)
        refused("name", services.account_delete, actor=ALICE, account=kept)


def test_memberships_are_set_changed_and_removed(account: Account, monkeypatch: Any) -> None:
    member = {"account": account, "user": User.objects.create_user("bob")}
    refused("role", services.membership_set, actor=ALICE, role="king", **member)
    start = revision()
    for role in ("viewer", "owner", "owner"):
        services.membership_set(actor=ALICE, role=role, **member)
    membership = Membership.objects.get()
    assert (membership.role, revision()) == ("owner", start + 2)
    assert detail() == {"role": ["viewer", "owner"]}
    services.membership_remove(actor=ALICE, membership=membership)
    assert not Membership.objects.exists() and revision() == start + 3
    assert entries()[1:] == [
        ("user:alice", "membership.set", "research/bob"),
        ("user:alice", "membership.set", "research/bob"),
        ("user:alice", "membership.remove", "research/bob"),
    ]
    before = (entries(), revision())  # both go with the transaction
    broken = Mock(**{"objects.filter.side_effect": RuntimeError})
    monkeypatch.setattr("metering.audit.Revision", broken)
    with pytest.raises(RuntimeError):
        services.key_create(actor=ALICE, account=account)
    assert (entries(), revision()) == before


def test_accounts_keys_and_caps_that_cannot_be(account: Account) -> None:
    for field, values in (
        ("name", {"name": "research"}),
        ("name", {"name": "Not a slug"}),
        ("name", {"name": "a" * 65}),
        ("name", {"name": ""}),
        ("weight", {"name": "ops", "weight": 0}),
        ("weight", {"name": "ops", "weight": 1001}),
        ("requests_per_minute", {"name": "ops", "requests_per_minute": 0}),
        ("tokens_per_minute", {"name": "ops", "tokens_per_minute": 2**31}),
    ):
        refused(field, services.account_create, actor=ALICE, **values)
    caps = (
        ("unit", Budget(unit="euros", cap=5)),
        *(("cap", Budget(unit="tokens", cap=cap)) for cap in (0, 2**63)),
        ("window", Budget(unit="tokens", cap=5, window="year")),
        ("window_s", Budget(unit="tokens", cap=5, window="day", window_s=3)),
        *(
            ("window_s", Budget(unit="tokens", cap=5, window="seconds", window_s=s))
            for s in (None, 0)
        ),
    )
    for field, values in (
        ("scopes", {"scopes": ["everything"]}),
        ("scopes", {"scopes": []}),
        ("model_names", {"model_names": ["nothing"]}),
        ("name", {"name": "a" * 101}),
        ("name", {"name": "two\nlines"}),
        ("expires_at", {"expires_at": datetime(2020, 1, 1, tzinfo=UTC)}),
        ("max_concurrent", {"max_concurrent": 0}),
        *((field, {"caps": [cap]}) for field, cap in caps),
    ):
        refused(field, services.key_create, actor=ALICE, account=account, **values)
    assert not ApiKey.objects.exists() and not Budget.objects.exists()


def test_a_key_is_changed_and_revoked(account: Account) -> None:
    model = fleet_services.catalogue_model_create(actor=ALICE, name="tiny", source="pypi:tiny")
    alias = fleet_services.alias_create(actor=ALICE, name="big", model=model)
    caps = [Budget(unit="tokens", cap=1000, window="day")]
    facts = {"expires_at": timezone.now() + timedelta(days=1), "caps": caps}
    facts |= {"requests_per_minute": 5}
    named = {"scopes": ["fleet:read", "inference"], "model_names": ["tiny", "big"]}
    made = services.key_create(actor=ALICE, account=account, **named, **facts)
    key, principal = made.row, stored(made.row).principal
    assert keys.is_key_of(made.key, key.digest, keys.digest_secret(settings.SECRET_KEY))
    assert (key.scopes, key.created_by) == (["inference", "fleet:read"], "user:alice")
    assert (principal.account, principal.key) == ("research", keys.prefix_of(made.key))
    assert principal.scopes == {Scope.INFERENCE, Scope.FLEET_READ}
    assert (principal.models, principal.key_limits) == (
        {"big", "tiny"},
        RateLimits(requests_per_minute=5),
    )
    assert principal.budgets == (Budget.objects.get().pk,)
    assert principal.expires_unix_s == facts["expires_at"].timestamp()
    audited = repr(list(AuditEntry.objects.values()))
    written = repr(list(ApiKey.objects.values())) + audited
    assert made.key[14:] not in written and key.digest not in audited, "without its secret"
    assert principal.may_leave_network
    fleet_services.alias_delete(actor=ALICE, alias=alias)
    fleet_services.catalogue_model_delete(actor=ALICE, model=model)  # which hinders no change
    key.name, key.scopes, key.names_end_user = "renamed", ["inference"], True
    key.may_leave_network = False
    changed = ["name", "scopes", "names_end_user", "may_leave_network"]
    services.key_update(actor=ALICE, key=key, changed_fields=changed)
    assert detail() == {
        "name": ["", "renamed"],
        "scopes": [["inference", "fleet:read"], ["inference"]],
        "names_end_user": [False, True],
        "may_leave_network": [True, False],
    }
    principal = stored(key).principal
    assert (principal.names_end_user, principal.may_leave_network) == (True, False)
    assert principal.models == {"big", "tiny"}
    for field in ("account", "prefix", "digest", "revoked_at", "created_by"):
        refused(field, services.key_update, actor=ALICE, key=key, changed_fields=[field])
    before = revision()
    assert services.key_revoke(actor=ALICE, key=key)
    assert (revision(), entries()[-1]) == (before + 1, ("user:alice", "key.revoke", key.prefix))
    assert ApiKey.objects.get().revoked_at == key.revoked_at is not None
    assert not services.key_revoke(actor=ALICE, key=key)
    assert revision() == before + 1 and stored(key).is_revoked


def test_a_budget_is_made_changed_and_removed(account: Account) -> None:
    key = services.key_create(actor=ALICE, account=account).row
    for owners in ({}, {"account": account, "key": key}):
        refused("account", services.budget_create, actor=ALICE, budget=Budget(**CAP, **owners))
    before = len(entries())
    budget = services.budget_create(
        actor=ALICE, budget=Budget(account=account, unit="micro_usd", cap=5, window="day")
    )

    def update(*changed: str) -> Budget:
        services.budget_update(actor=ALICE, budget=budget, changed_fields=list(changed))
        return Budget.objects.get()

    Budget.objects.update(spent=3, window_ends_unix_s=99)
    budget.cap = 9
    for _ in range(2):
        changed = update("cap", "window")
        assert (changed.cap, changed.spent, changed.window_ends_unix_s) == (9, 3, 99)
    budget.window, budget.window_s = "seconds", 60
    changed = update("window", "window_s")
    assert (changed.spent, changed.window_ends_unix_s) == (3, None)
    unit = {"budget": budget, "changed_fields": ["unit"]}
    refused("unit", services.budget_update, actor=ALICE, **unit)
    services.budget_remove(actor=ALICE, budget=budget)
    assert [action for _, action, _ in entries()[before:]] == [
        *("budget.create", "budget.update", "budget.update", "budget.remove")
    ]


def test_bodies_are_captured_for_a_limited_time(account: Account, made: CreatedKey) -> None:
    key, now = made.row, timezone.now()
    for until in (now - timedelta(minutes=1), now + timedelta(days=8)):
        key.capture_until = until
        change = {"actor": ALICE, "changed_fields": ["capture_until"]}
        refused("capture_until", services.key_update, key=key, **change)
    key.capture_until = until = now + timedelta(hours=1)
    services.key_update(key=key, **change)
    account.capture_until = until + timedelta(hours=1)
    services.account_update(account=account, **change)
    actions = AuditEntry.objects.filter(detail__has_key="capture_until").values_list("action")
    assert {action for (action,) in actions} >= {"key.update", "account.update"}
    (principal,) = (one.principal for one in DatabaseKeyStore().keys(key.prefix).values())
    assert principal.capture_until_unix_s == account.capture_until.timestamp()
    assert principal.is_captured(time.time())
    ApiKey.objects.filter(pk=key.pk).update(capture_until=now - timedelta(days=1))
    key = ApiKey.objects.get(pk=key.pk)
    key.name = "renamed"  # which a time that has passed does not hinder
    services.key_update(actor=ALICE, key=key, changed_fields=["name"])
