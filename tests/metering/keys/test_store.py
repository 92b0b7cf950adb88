"""How keys look, what the directory reads of them from the database, and what people may do."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.contrib.auth.models import User

from metering import services
from metering.actor import COMMAND
from metering.errors import DisabledAccountError, NoAccountError
from metering.keys import api_key as keys
from metering.keys import store as key_store
from metering.keys.records import AccountRecord, MembershipRecord, person_principal
from metering.keys.store import DatabaseKeyStore
from metering.models import Account, ApiKey
from metering.principal import Scope
from metering.services import Cap
from tests.cases import each_case

pytestmark = pytest.mark.django_db


def test_what_the_directory_reads_and_writes(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, cap = DatabaseKeyStore(), Cap(unit="tokens", cap=5)
    of_the_account = services.budget_create(actor=COMMAND, cap=cap, account=account)
    first = services.key_create(actor=COMMAND, account=account, caps=[cap, cap]).row
    second = services.key_create(actor=COMMAND, account=account).row
    found = store.keys()
    own = tuple(first.budgets.order_by("id").values_list("id", flat=True))
    assert found[first.prefix].principal.budgets == (*own, of_the_account.pk)
    assert found[second.prefix].principal.budgets == (of_the_account.pk,)
    assert store.keys(second.prefix) == {second.prefix: found[second.prefix]}
    assert store.keys("hx-unknown") == {}
    user, other = User.objects.create_user("bob"), User.objects.create_user("eve")
    services.membership_set(actor=COMMAND, account=account, user=user, role="owner")
    memberships = store.memberships(user.pk)
    assert [(one.account.name, one.role) for one in memberships] == [("research", "owner")]
    assert store.memberships(other.pk) == ()
    assert store.built_in_accounts().keys() == {"anonymous", "shared"}
    monkeypatch.setattr(key_store, "NAMES_A_QUERY", 2)
    made = [services.key_create(actor=COMMAND, account=account).row.prefix for _ in range(3)]
    made += [first.prefix, second.prefix]
    for used_unix_s in (2000.0, 1000.0):  # a later use stays
        store.record_uses(made, used_unix_s)
    used = {key.last_used_at for key in ApiKey.objects.all()}
    assert used == {datetime.fromtimestamp(2000, UTC)}


SECRET = keys.digest_secret("django's")


def test_only_the_whole_key_is_recognised_and_by_its_secret_alone() -> None:
    made = keys.make_key()
    assert made.key.startswith(f"{made.prefix}-")
    assert keys.prefix_of(made.key) == made.prefix
    assert (len(made.prefix), len(made.key)) == (13, 46)
    assert keys.make_key().key != made.key
    assert made.prefix in repr(made) and made.key not in repr(made), "printed by accident"
    digest = keys.digest_of(made.key, SECRET)
    assert len(digest) == 64 and made.key not in digest
    assert keys.is_key_of(made.key, digest, SECRET)
    other = made.key[:-1] + ("a" if made.key[-1] != "a" else "b")
    assert not keys.is_key_of(other, digest, SECRET)
    assert not keys.is_key_of(made.key, digest, keys.digest_secret("another"))


@each_case(
    "word",
    [
        "",
        "sk-placeholder",
        "hx-0123456789",
        "hx-0123456789-" + "a" * 31,
        "hx-0123456789-" + "a" * 33,
        "hx-012345678-" + "a" * 33,
        "HX-0123456789-" + "a" * 32,
        "hx-0123456789-" + "a" * 31 + "\n",
        "hx-0123456789-" + "a" * 32 + "\n",
        "hx-012345678é-" + "a" * 32,
        "hx-012345678٣-" + "a" * 32,
    ],
)
def test_what_is_no_key(word: str) -> None:
    assert keys.prefix_of(word) is None


def test_what_people_may_do() -> None:
    """In the account in which they may do most; staff may see the fleet, superusers change it."""

    def membership(account: str, role: str, *, enabled: bool = True) -> MembershipRecord:
        return MembershipRecord(account=AccountRecord(name=account, enabled=enabled), role=role)

    viewer = membership("a", "viewer")
    all_ = (viewer, membership("b", "member"), membership("c", "owner", enabled=False))
    principal = person_principal(User(), all_, None)
    assert principal.account == "b"
    assert principal.scopes == {Scope.INFERENCE, Scope.USAGE_READ}
    assert person_principal(User(), all_, "a").scopes == {Scope.USAGE_READ}
    with pytest.raises(DisabledAccountError):
        person_principal(User(), all_, "c")
    for held, named in ((all_, "d"), ((), None)):
        with pytest.raises(NoAccountError):
            person_principal(User(), held, named)
    staff = person_principal(User(is_staff=True), (viewer,), None)
    assert staff.scopes == {Scope.USAGE_READ, Scope.FLEET_READ}
    both = person_principal(User(is_staff=True, is_superuser=True), (viewer,), None)
    assert both.scopes == {Scope.USAGE_READ, Scope.FLEET_READ, Scope.FLEET_WRITE}
