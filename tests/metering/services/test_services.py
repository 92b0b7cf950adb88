"""Writes to accounts and memberships: their checks, audit entries and revisions for gateways."""

from __future__ import annotations

import os
import pwd
import socket
from typing import Any

import pytest
from django.contrib.auth.models import User

from metering import services
from metering.actor import COMMAND, Actor, ActorKind, key_actor
from metering.models import Account, AuditEntry, Membership
from tests.metering.services.service_support import ALICE, entries, refused, revision

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("actor", "text"),
    [
        (ALICE, "user:alice"),
        (key_actor("hx-abc"), "key:hx-abc"),
        (Actor(ActorKind.COMMAND, "ops@box"), "command:ops@box"),
        (Actor(ActorKind.GATEWAY), "gateway"),
    ],
)
def test_actors_as_text(actor: Actor, text: str) -> None:
    assert str(actor) == text


def test_a_command_is_the_operating_systems_user_on_this_host() -> None:
    user = pwd.getpwuid(os.getuid()).pw_name
    assert str(COMMAND) == f"command:{user}@{socket.gethostname()}"


def test_what_goes_with_an_account_has_rows_of_its_own(account: Account) -> None:
    services.membership_set(
        actor=ALICE, account=account, user=User.objects.create(username="bob"), role="member"
    )
    budget = services.budget_create(
        actor=ALICE, account=account, cap=services.Cap(unit="tokens", cap=5)
    )
    AuditEntry.objects.all().delete()
    services.account_delete(actor=ALICE, account=account)
    rows = set(AuditEntry.objects.values_list("action", "object_id"))
    assert {("budget.remove", f"research/{budget.pk}"), ("account.delete", "research")} <= rows
    assert len(rows) == 3, "and the member's"


class TestAccounts:
    def test_create(self, account: Account) -> None:
        before = revision()
        made = services.account_create(actor=ALICE, name="ops", weight=3, requests_per_minute=60)
        assert Account.objects.get(name="ops").weight == made.weight == 3
        assert revision() == before + 1
        entry = AuditEntry.objects.first()
        assert entry is not None
        assert (entry.actor, entry.action, entry.object_id) == (
            "user:alice",
            "account.create",
            "ops",
        )
        assert entry.detail == {"weight": 3, "enabled": True, "requests_per_minute": 60}

    @pytest.mark.parametrize(
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
        before = revision()
        account.weight, account.enabled = 5, False
        services.account_update(
            actor=ALICE, account=account, changed_fields=["weight", "enabled", "description"]
        )
        assert revision() == before + 1
        entry = AuditEntry.objects.first()
        assert entry is not None
        assert entry.detail == {"weight": [1, 5], "enabled": [True, False]}

    def test_an_update_that_changes_nothing(self, account: Account) -> None:
        before = (entries(), revision())
        services.account_update(actor=ALICE, account=account, changed_fields=["weight"])
        assert (entries(), revision()) == before

    def test_the_name_stays(self, account: Account) -> None:
        refused(
            "name",
            services.account_update,
            actor=ALICE,
            account=account,
            changed_fields=["name"],
        )

    def test_delete(self, account: Account) -> None:
        services.account_delete(actor=ALICE, account=account)
        assert entries()[-1] == ("user:alice", "account.delete", "research")
        assert not Account.objects.filter(name="research").exists()

    def test_one_that_has_keys_stays(self, account: Account) -> None:
        services.key_create(actor=ALICE, account=account)
        refused("name", services.account_delete, actor=ALICE, account=account)

    @pytest.mark.parametrize("name", ["anonymous", "shared"])
    def test_built_in_ones_stay(self, account: Account, name: str) -> None:
        built_in = Account.objects.get(name=name)
        refused("name", services.account_delete, actor=ALICE, account=built_in)


class TestMemberships:
    def test_set_change_and_remove(self, account: Account) -> None:
        user = User.objects.create_user("bob")
        start = revision()
        services.membership_set(actor=ALICE, account=account, user=user, role="viewer")
        services.membership_set(actor=ALICE, account=account, user=user, role="owner")
        services.membership_set(actor=ALICE, account=account, user=user, role="owner")
        membership = Membership.objects.get()
        assert (membership.role, revision()) == ("owner", start + 2)
        services.membership_remove(actor=ALICE, membership=membership)
        assert not Membership.objects.exists()
        assert entries()[1:] == [
            ("user:alice", "membership.set", "research/bob"),
            ("user:alice", "membership.set", "research/bob"),
            ("user:alice", "membership.remove", "research/bob"),
        ]

    def test_a_role_that_is_none(self, account: Account) -> None:
        user = User.objects.create_user("bob")
        refused(
            "role",
            services.membership_set,
            actor=ALICE,
            account=account,
            user=user,
            role="king",
        )
