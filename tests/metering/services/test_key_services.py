"""Writes to keys and budgets: their checks, audit entries and revisions for gateways."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone

from fleet import services as fleet_services
from metering import services
from metering.keys import api_key as keys
from metering.keys.store import DatabaseKeyStore
from metering.models import Account, ApiKey, AuditEntry, Budget
from metering.principal import RateLimits, Scope
from metering.services import Cap
from tests.metering.services.service_support import ALICE, entries, refused, revision

pytestmark = pytest.mark.django_db


class TestKeys:
    def test_create(self, account: Account) -> None:
        fleet_services.catalogue_model_create(actor=ALICE, name="tiny", source="pypi:tiny")
        model = fleet_services.catalogue_model_create(
            actor=ALICE, name="large", source="pypi:large"
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
        record = DatabaseKeyStore().keys([row.prefix])[row.prefix]
        principal = record.principal
        assert principal.account == "research"
        assert principal.scopes == {Scope.INFERENCE, Scope.FLEET_READ}
        assert principal.models == {"big", "tiny"}
        assert principal.budgets == (Budget.objects.get().pk,)
        assert principal.key_limits.requests_per_minute == 5
        assert principal.expires_unix_s == expires_at.timestamp()

    def test_no_secret_is_written_anywhere(self, account: Account) -> None:
        made = services.key_create(actor=ALICE, account=account, name="ci")
        written = repr(list(ApiKey.objects.values())) + repr(list(AuditEntry.objects.values()))
        assert made.key not in written
        assert made.key[14:] not in written
        assert made.row.digest not in repr(list(AuditEntry.objects.values()))

    @pytest.mark.parametrize(
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
        assert DatabaseKeyStore().keys([key.prefix])[key.prefix].is_revoked

    def test_update(self, account: Account) -> None:
        key = services.key_create(actor=ALICE, account=account).row
        assert DatabaseKeyStore().keys([key.prefix])[key.prefix].principal.may_leave_network
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
        principal = DatabaseKeyStore().keys([key.prefix])[key.prefix].principal
        assert (principal.names_end_user, principal.may_leave_network) == (True, False)

    @pytest.mark.parametrize("field", ["account", "prefix", "digest", "revoked_at", "created_by"])
    def test_what_stays(self, account: Account, field: str) -> None:
        key = services.key_create(actor=ALICE, account=account).row
        refused(field, services.key_update, actor=ALICE, key=key, changed_fields=[field])

    def test_a_model_that_left_the_catalogue_hinders_no_change(self, account: Account) -> None:
        model = fleet_services.catalogue_model_create(actor=ALICE, name="tiny", source="pypi:tiny")
        key = services.key_create(actor=ALICE, account=account, model_names=["tiny"]).row
        fleet_services.catalogue_model_delete(actor=ALICE, model=model)
        key.name = "renamed"
        services.key_update(actor=ALICE, key=key, changed_fields=["name"])
        assert ApiKey.objects.get().model_names == ["tiny"]


class TestBudgets:
    def test_create_update_and_remove(self, account: Account) -> None:
        budget = services.budget_create(
            actor=ALICE, cap=Cap(unit="micro_usd", cap=5, window="day"), account=account
        )
        Budget.objects.update(spent=3, window_ends_unix_s=99)
        budget.cap = 9
        services.budget_update(actor=ALICE, budget=budget, changed_fields=["cap"])
        stored = Budget.objects.get()
        assert (stored.cap, stored.spent, stored.window_ends_unix_s) == (9, 3, 99)
        budget.window, budget.window_s = "seconds", 60
        services.budget_update(actor=ALICE, budget=budget, changed_fields=["window", "window_s"])
        stored = Budget.objects.get()
        assert (stored.spent, stored.window_ends_unix_s) == (3, None)
        services.budget_remove(actor=ALICE, budget=budget)
        assert [action for _, action, _ in entries()[1:]] == [
            "budget.create",
            "budget.update",
            "budget.update",
            "budget.remove",
        ]

    def test_the_unit_stays(self, account: Account) -> None:
        budget = services.budget_create(actor=ALICE, cap=Cap(unit="tokens", cap=5), account=account)
        refused(
            "unit",
            services.budget_update,
            actor=ALICE,
            budget=budget,
            changed_fields=["unit"],
        )

    @pytest.mark.parametrize(
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

    def test_nobodys_and_two_owners(self, account: Account) -> None:
        cap = Cap(unit="tokens", cap=5)
        key = services.key_create(actor=ALICE, account=account).row
        refused("account", services.budget_create, actor=ALICE, cap=cap)
        refused("account", services.budget_create, actor=ALICE, cap=cap, account=account, key=key)


@pytest.mark.parametrize(
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
