"""What a person who is logged in may do, and which of their accounts pays."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from metering.errors import DisabledAccountError, NoAccountError
from metering.keys.records import AccountRecord, MembershipRecord, person_principal
from metering.principal import Scope


@dataclass
class Person:
    is_staff: bool = False
    is_superuser: bool = False


def membership(account: str, role: str, *, enabled: bool = True) -> MembershipRecord:
    return MembershipRecord(account=AccountRecord(name=account, enabled=enabled), role=role)


def test_the_account_in_which_they_may_do_most() -> None:
    memberships = (
        membership("a", "viewer"),
        membership("b", "member"),
        membership("c", "owner", enabled=False),
    )
    principal = person_principal(Person(), memberships, None)
    assert principal.account == "b"
    assert principal.scopes == {Scope.INFERENCE, Scope.USAGE_READ}
    assert person_principal(Person(), memberships, "a").scopes == {Scope.USAGE_READ}
    with pytest.raises(DisabledAccountError):
        person_principal(Person(), memberships, "c")
    with pytest.raises(NoAccountError):
        person_principal(Person(), memberships, "d")


def test_staff_may_see_the_fleet_and_superusers_change_it() -> None:
    memberships = (membership("a", "viewer"),)
    staff = person_principal(Person(is_staff=True), memberships, None)
    assert staff.scopes == {Scope.USAGE_READ, Scope.FLEET_READ}
    both = person_principal(Person(is_staff=True, is_superuser=True), memberships, None)
    assert both.scopes == {Scope.USAGE_READ, Scope.FLEET_READ, Scope.FLEET_WRITE}


def test_somebody_without_an_account() -> None:
    with pytest.raises(NoAccountError):
        person_principal(Person(), (), None)
