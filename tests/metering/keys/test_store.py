"""What the directory reads from the database."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError, connection

from metering import services
from metering.actor import COMMAND
from metering.errors import DirectoryUnavailableError
from metering.keys import store as key_store
from metering.keys.store import DatabaseKeyStore
from metering.models import Account, ApiKey
from metering.services import Cap

pytestmark = pytest.mark.django_db


@pytest.fixture
def store() -> DatabaseKeyStore:
    return DatabaseKeyStore()


def test_budgets_of_the_key_and_of_its_account(account: Account, store: DatabaseKeyStore) -> None:
    cap = Cap(unit="tokens", cap=5)
    of_the_account = services.budget_create(actor=COMMAND, cap=cap, account=account)
    first = services.key_create(actor=COMMAND, account=account, caps=[cap, cap]).row
    second = services.key_create(actor=COMMAND, account=account).row
    found = store.keys([first.prefix, second.prefix, "hx-unknown"])
    own = tuple(first.budgets.order_by("id").values_list("id", flat=True))
    assert found[first.prefix].principal.budgets == (*own, of_the_account.pk)
    assert found[second.prefix].principal.budgets == (of_the_account.pk,)
    assert "hx-unknown" not in found


def test_many_keys_at_once(
    account: Account, store: DatabaseKeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_store, "NAMES_A_QUERY", 3)
    made = [services.key_create(actor=COMMAND, account=account).row.prefix for _ in range(7)]
    assert store.keys(made).keys() == set(made)


def test_memberships(account: Account, store: DatabaseKeyStore) -> None:
    user, other = User.objects.create_user("bob"), User.objects.create_user("eve")
    services.membership_set(actor=COMMAND, account=account, user=user, role="owner")
    found = store.memberships(user.pk)
    assert [(one.account.name, one.role) for one in found] == [("research", "owner")]
    assert store.memberships(other.pk) == ()


def test_built_in_accounts(account: Account, store: DatabaseKeyStore) -> None:
    assert store.built_in_accounts().keys() == {"anonymous", "shared"}


def test_a_later_use_stays(account: Account, store: DatabaseKeyStore) -> None:
    prefix = services.key_create(actor=COMMAND, account=account).row.prefix
    store.record_uses([prefix], 2000.0)
    store.record_uses([prefix], 1000.0)
    assert ApiKey.objects.get().last_used_at == datetime.fromtimestamp(2000, UTC)


def test_an_error_of_the_database_is_an_outage_and_closes_the_connection(
    store: DatabaseKeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    def fail(*_args: object, **_options: object) -> None:
        raise OperationalError("gone")

    monkeypatch.setattr("metering.models.Revision.objects.values_list", fail)
    monkeypatch.setattr(connection, "close", lambda: closed.append(True))
    with pytest.raises(DirectoryUnavailableError):
        store.revision()
    assert closed == [True]
