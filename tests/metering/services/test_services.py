"""Writes to accounts, members, keys and budgets: checks, audit entries, gateways' revisions."""

from __future__ import annotations

import os
import pwd
import socket
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.utils import timezone

from fleet import services as fleet_services
from metering import services
from metering.actor import COMMAND, Actor, ActorKind, key_actor
from metering.keys import api_key as keys
from metering.keys.store import DatabaseKeyStore
from metering.models import Account, ApiKey, AuditEntry, Budget, Membership
from metering.principal import BUILT_IN_ACCOUNTS, RateLimits, Scope
from metering.services import Cap
from tests.cases import each_case
from tests.metering.services.service_support import ALICE, entries, refused, revision

pytestmark = pytest.mark.django_db


@each_case(
    ("actor", "text"),
    [
        (ALICE, "user:alice"),
        (key_actor("hx-abc"), "key:hx-abc"),
        (Actor(ActorKind.COMMAND, "ops@box"), "command:ops@box"),
        (Actor(ActorKind.GATEWAY), "gateway"),
        (COMMAND, f"command:{pwd.getpwuid(os.getuid()).pw_name}@{socket.gethostname()}"),
    ],
)
def test_actors_as_text(actor: Actor, text: str) -> None:
    assert str(actor) == text


class TestAccounts:
    def test_create(self, account: Account) -> None:
        before = revision()
        made = services.account_create(actor=ALICE, name="ops", weight=3, requests_per_minute=60)
        assert Account.objects.get(name="ops").weight == made.weight == 3
        assert revision() == before + 1
        assert entries()[-1] == ("user:alice", "account.create", "ops")
        detail = AuditEntry.objects.get(object_id="ops").detail
        assert detail == {"weight": 3, "enabled": True, "requests_per_minute": 60}

    @each_case(
        ("field", "values"),
        [
            ("name", {"name": "research"}),
            ("name", {"name": "Not a slug"}),
            ("name", {"name": "a" * 65}),
            ("name", {"name": ""}),
            ("weight", {"name": "ops", "weight": 0}),
            ("requests_per_minute", {"name": "ops", "requests_per_minute": 0}),
            ("tokens_per_minute", {"name": "ops", "tokens_per_minute": 2**31}),
        ],
    )
    def test_refused(self, account: Account, field: str, values: dict[str, Any]) -> None:
        refused(field, services.account_create, actor=ALICE, **values)

    def test_two_at_once_of_one_name(
        self, account: Account, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The other one is committed after this one has looked."""
        looked = Account.objects.none()
        monkeypatch.setattr(Account.objects, "filter", lambda **_names: looked)
        message = refused("name", services.account_create, actor=ALICE, name="research")
        assert "already" in message

    def test_update(self, account: Account) -> None:
        def update(*changed: str) -> None:
            services.account_update(actor=ALICE, account=account, changed_fields=list(changed))

        before = (entries(), revision())
        update("weight")
        assert (entries(), revision()) == before, "nothing has changed"
        account.weight, account.enabled = 5, False
        update("weight", "enabled", "description")
        assert revision() == before[1] + 1
        entry = AuditEntry.objects.first()
        assert entry is not None
        assert entry.detail == {"weight": [1, 5], "enabled": [True, False]}
        named = {"account": account, "changed_fields": ["name"]}
        refused("name", services.account_update, actor=ALICE, **named)

    def test_delete(self, account: Account) -> None:
        for name in BUILT_IN_ACCOUNTS:
            built_in = Account.objects.get(name=name)
            refused("name", services.account_delete, actor=ALICE, account=built_in)
        with_keys = services.account_create(actor=ALICE, name="with-keys")
        services.key_create(actor=ALICE, account=with_keys)
        refused("name", services.account_delete, actor=ALICE, account=with_keys)
        bob = User.objects.create(username="bob")
        services.membership_set(actor=ALICE, account=account, user=bob, role="member")
        cap = Cap(unit="tokens", cap=5)
        budget = services.budget_create(actor=ALICE, account=account, cap=cap)
        AuditEntry.objects.all().delete()
        services.account_delete(actor=ALICE, account=account)
        assert set(entries()) == {
            ("user:alice", "budget.remove", f"research/{budget.pk}"),
            ("user:alice", "membership.remove", "research/bob"),
            ("user:alice", "account.delete", "research"),
        }, "what goes with it has rows of its own"
        assert not Account.objects.filter(name="research").exists()


def test_memberships_are_set_changed_and_removed(account: Account) -> None:
    user = User.objects.create_user("bob")
    member = {"account": account, "user": user}
    refused("role", services.membership_set, actor=ALICE, role="king", **member)
    start = revision()
    for role in ("viewer", "owner", "owner"):
        services.membership_set(actor=ALICE, role=role, **member)
    membership = Membership.objects.get()
    assert (membership.role, revision()) == ("owner", start + 2)
    services.membership_remove(actor=ALICE, membership=membership)
    assert not Membership.objects.exists()
    assert entries()[1:] == [
        ("user:alice", "membership.set", "research/bob"),
        ("user:alice", "membership.set", "research/bob"),
        ("user:alice", "membership.remove", "research/bob"),
    ]


class TestKeys:
    def test_create(self, account: Account) -> None:
        _tiny, model = (
            fleet_services.catalogue_model_create(actor=ALICE, name=name, source=f"pypi:{name}")
            for name in ("tiny", "large")
        )
        fleet_services.alias_create(actor=ALICE, name="big", model=model)
        before = revision()
        expires_at = timezone.now() + timedelta(days=1)
        made = services.key_create(
            actor=ALICE,
            account=account,
            name="ci",
            scopes=["fleet:read", "inference"],
            model_names=["tiny", "big"],
            expires_at=expires_at,
            limits=RateLimits(requests_per_minute=5),
            caps=[Cap(unit="tokens", cap=1000, window="day")],
        )
        row = ApiKey.objects.get()
        assert keys.prefix_of(made.key) == row.prefix
        secret = keys.digest_secret(settings.SECRET_KEY)
        assert keys.is_key_of(made.key, row.digest, secret)
        assert (row.scopes, row.model_names) == (["inference", "fleet:read"], ["big", "tiny"])
        assert row.created_by == "user:alice"
        assert revision() > before
        record = DatabaseKeyStore().keys(row.prefix)[row.prefix]
        principal = record.principal
        assert principal.account == "research"
        assert principal.scopes == {Scope.INFERENCE, Scope.FLEET_READ}
        assert principal.models == {"big", "tiny"}
        assert principal.budgets == (Budget.objects.get().pk,)
        assert principal.key_limits.requests_per_minute == 5
        assert principal.expires_unix_s == expires_at.timestamp()
        audited = repr(list(AuditEntry.objects.values()))
        written = repr(list(ApiKey.objects.values())) + audited
        assert made.key not in written and made.key[14:] not in written
        assert row.digest not in audited

    @each_case(
        ("field", "values"),
        [
            ("scopes", {"scopes": ["everything"]}),
            ("scopes", {"scopes": []}),
            ("model_names", {"model_names": ["nothing"]}),
            ("name", {"name": "a" * 101}),
            ("name", {"name": "two\nlines"}),
            ("expires_at", {"expires_at": datetime(2020, 1, 1, tzinfo=UTC)}),
            ("max_concurrent", {"limits": RateLimits(max_concurrent=0)}),
            ("cap", {"caps": [Cap(unit="tokens", cap=0)]}),
            ("window_s", {"caps": [Cap(unit="tokens", cap=5, window="seconds")]}),
        ],
    )
    def test_refused(self, account: Account, field: str, values: dict[str, Any]) -> None:
        refused(field, services.key_create, actor=ALICE, account=account, **values)
        assert not ApiKey.objects.exists()

    def test_revoke(self, account: Account) -> None:
        key = services.key_create(actor=ALICE, account=account).row
        before = revision()
        assert services.key_revoke(actor=ALICE, key=key)
        assert revision() == before + 1
        assert entries()[-1] == ("user:alice", "key.revoke", key.prefix)
        assert ApiKey.objects.get().revoked_at == key.revoked_at is not None
        assert not services.key_revoke(actor=ALICE, key=key)
        assert revision() == before + 1
        assert DatabaseKeyStore().keys(key.prefix)[key.prefix].is_revoked

    def test_update(self, account: Account) -> None:
        model = fleet_services.catalogue_model_create(actor=ALICE, name="tiny", source="pypi:tiny")
        key = services.key_create(actor=ALICE, account=account, model_names=["tiny"]).row
        assert DatabaseKeyStore().keys(key.prefix)[key.prefix].principal.may_leave_network
        fleet_services.catalogue_model_delete(actor=ALICE, model=model)  # which hinders no change
        key.name, key.scopes, key.names_end_user = "renamed", ["inference"], True
        key.may_leave_network = False
        changed = ["name", "scopes", "names_end_user", "may_leave_network"]
        services.key_update(actor=ALICE, key=key, changed_fields=changed)
        entry = AuditEntry.objects.first()
        assert entry is not None
        assert entry.detail == {
            "name": ["", "renamed"],
            "scopes": [["inference", "usage:read"], ["inference"]],
            "names_end_user": [False, True],
            "may_leave_network": [True, False],
        }
        assert ApiKey.objects.get().model_names == ["tiny"]
        principal = DatabaseKeyStore().keys(key.prefix)[key.prefix].principal
        assert (principal.names_end_user, principal.may_leave_network) == (True, False)
        for field in ("account", "prefix", "digest", "revoked_at", "created_by"):
            refused(field, services.key_update, actor=ALICE, key=key, changed_fields=[field])


class TestBudgets:
    def test_create_update_and_remove(self, account: Account) -> None:
        cap = Cap(unit="micro_usd", cap=5, window="day")
        key = services.key_create(actor=ALICE, account=account).row
        refused("account", services.budget_create, actor=ALICE, cap=cap)
        owners = {"account": account, "key": key}
        refused("account", services.budget_create, actor=ALICE, cap=cap, **owners)
        before = len(entries())
        budget = services.budget_create(actor=ALICE, cap=cap, account=account)

        def update(*changed: str) -> Budget:
            services.budget_update(actor=ALICE, budget=budget, changed_fields=list(changed))
            return Budget.objects.get()

        Budget.objects.update(spent=3, window_ends_unix_s=99)
        budget.cap = 9
        stored = update("cap")
        assert (stored.cap, stored.spent, stored.window_ends_unix_s) == (9, 3, 99)
        budget.window, budget.window_s = "seconds", 60
        stored = update("window", "window_s")
        assert (stored.spent, stored.window_ends_unix_s) == (3, None)
        unit = {"budget": budget, "changed_fields": ["unit"]}
        refused("unit", services.budget_update, actor=ALICE, **unit)
        services.budget_remove(actor=ALICE, budget=budget)
        assert [action for _, action, _ in entries()[before:]] == [
            *("budget.create", "budget.update", "budget.update", "budget.remove"),
        ]

    @each_case(
        ("field", "cap"),
        [
            ("unit", Cap(unit="euros", cap=5)),
            ("cap", Cap(unit="tokens", cap=0)),
            ("cap", Cap(unit="tokens", cap=2**63)),
            ("window", Cap(unit="tokens", cap=5, window="year")),
            ("window_s", Cap(unit="tokens", cap=5, window="day", window_s=3)),
            ("window_s", Cap(unit="tokens", cap=5, window="seconds", window_s=0)),
        ],
    )
    def test_refused(self, account: Account, field: str, cap: Cap) -> None:
        refused(field, services.budget_create, actor=ALICE, cap=cap, account=account)


@each_case(
    "values",
    [
        {"account_id": None},
        {"window": "seconds"},
        {"window": "day", "window_s": 5},
        {"cap": -1},
        {"spent": -1},
    ],
)
def test_the_database_refuses_what_services_do_not_write(
    account: Account, values: dict[str, Any]
) -> None:
    columns = {"account_id": "research", "unit": "tokens", "cap": 5} | values
    with pytest.raises(IntegrityError), transaction.atomic():
        Budget.objects.create(**columns)


def test_a_change_that_fails_is_not_audited(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry and the revision go with the transaction."""
    before = (entries(), revision())

    def fail(*_args: object, **_options: object) -> None:
        raise RuntimeError

    monkeypatch.setattr("metering.services.keys.revision_bump", fail)
    with pytest.raises(RuntimeError):
        services.key_create(actor=ALICE, account=account)
    assert (entries(), revision()) == before
