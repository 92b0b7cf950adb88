"""Callers without a key, people, and when keys were used."""

from __future__ import annotations

import asyncio

import pytest

from metering.directory import KeyDirectory
from metering.errors import (
    DirectoryUnavailableError,
    DisabledAccountError,
    NoAccountError,
    RevokedKeyError,
)
from metering.key_records import AccountRecord, MembershipRecord
from metering.principal import ALL_SCOPES, RateLimits, Scope
from tests.metering.directory_support import (
    SECRET_KEY,
    Clock,
    FakeStore,
    Person,
    rounds,
    until,
)


class TestWithoutAKey:
    async def test_built_in_accounts_are_read_as_keys_are(
        self, directory: KeyDirectory, store: FakeStore
    ) -> None:
        limits = RateLimits(requests_per_minute=3)
        store.accounts = {
            name: AccountRecord(name=name, weight=4, limits=limits, budgets=(1, 2))
            for name in ("anonymous", "shared")
        }
        store.number += 1
        await until(lambda: directory.anonymous().budgets == (1, 2))
        anonymous, shared = directory.anonymous(), directory.shared()
        assert anonymous.is_anonymous
        assert anonymous.scopes == {Scope.INFERENCE}
        assert (anonymous.account, anonymous.weight) == ("anonymous", 4)
        assert anonymous.account_limits == shared.account_limits == limits
        assert (shared.account, shared.is_anonymous) == ("shared", False)
        assert shared.scopes == ALL_SCOPES - {Scope.FLEET_WRITE}
        store.is_away = True
        await asyncio.sleep(0)
        assert directory.shared() == shared

    async def test_before_the_database_was_read(self, store: FakeStore) -> None:
        directory = KeyDirectory(store, secret_key=SECRET_KEY)
        assert directory.anonymous().is_anonymous
        assert directory.shared().account == "shared"

    async def test_a_built_in_account_that_is_disabled(
        self, directory: KeyDirectory, store: FakeStore
    ) -> None:
        store.accounts = {"anonymous": AccountRecord(name="anonymous", enabled=False)}
        store.number += 1

        def is_refused() -> bool:
            try:
                directory.anonymous()
            except DisabledAccountError:
                return True
            return False

        await until(is_refused)


class TestPeople:
    @staticmethod
    def membership(account: str, role: str, *, enabled: bool = True) -> MembershipRecord:
        return MembershipRecord(account=AccountRecord(name=account, enabled=enabled), role=role)

    async def test_the_account_in_which_they_may_do_most(
        self, directory: KeyDirectory, store: FakeStore
    ) -> None:
        store.people[1] = (
            self.membership("a", "viewer"),
            self.membership("b", "member"),
            self.membership("c", "owner", enabled=False),
        )
        principal = await directory.principal_for_user(Person())
        assert principal.account == "b"
        assert principal.scopes == {Scope.INFERENCE, Scope.USAGE_READ}
        viewing = await directory.principal_for_user(Person(), account="a")
        assert viewing.scopes == {Scope.USAGE_READ}
        with pytest.raises(DisabledAccountError):
            await directory.principal_for_user(Person(), account="c")
        with pytest.raises(NoAccountError):
            await directory.principal_for_user(Person(), account="d")

    async def test_staff_may_see_the_fleet_and_superusers_change_it(
        self, directory: KeyDirectory, store: FakeStore
    ) -> None:
        store.people[1] = (self.membership("a", "viewer"),)
        staff = await directory.principal_for_user(Person(is_staff=True))
        assert staff.scopes == {Scope.USAGE_READ, Scope.FLEET_READ}
        both = await directory.principal_for_user(Person(is_staff=True, is_superuser=True))
        assert both.scopes == {Scope.USAGE_READ, Scope.FLEET_READ, Scope.FLEET_WRITE}

    async def test_somebody_without_an_account(self, directory: KeyDirectory) -> None:
        with pytest.raises(NoAccountError):
            await directory.principal_for_user(Person())

    async def test_a_membership_that_changes_and_an_outage(
        self, directory: KeyDirectory, store: FakeStore
    ) -> None:
        store.people[1] = (self.membership("a", "owner"),)
        await directory.principal_for_user(Person())
        store.people[1] = (self.membership("b", "owner"),)
        store.number += 1
        await rounds(store)
        assert (await directory.principal_for_user(Person())).account == "b"
        store.is_away = True
        assert (await directory.principal_for_user(Person())).account == "b"
        with pytest.raises(DirectoryUnavailableError):
            await directory.principal_for_user(Person(pk=2))


class TestUses:
    async def test_a_key_is_written_once_a_minute_in_a_batch(
        self, directory: KeyDirectory, store: FakeStore, clock: Clock
    ) -> None:
        first, second = store.make(), store.make()
        for _ in range(5):
            await directory.find(first)
            await directory.find(second)
        await directory.uses.write()
        assert store.uses == [({first[:13], second[:13]}, clock.now_s)]
        clock.now_s += 59
        await directory.find(first)
        await directory.uses.write()
        assert len(store.uses) == 1
        clock.now_s += 1
        await directory.find(first)
        await directory.uses.write()
        assert store.uses[1:] == [({first[:13]}, clock.now_s)]

    async def test_refused_keys_are_not_used(
        self, directory: KeyDirectory, store: FakeStore
    ) -> None:
        with pytest.raises(RevokedKeyError):
            await directory.find(store.make(is_revoked=True))
        await directory.uses.write()
        assert store.uses == []

    async def test_an_outage_loses_none(self, directory: KeyDirectory, store: FakeStore) -> None:
        key = store.make()
        await directory.find(key)
        store.is_away = True
        await directory.uses.write()
        store.is_away = False
        await directory.uses.write()
        assert [prefixes for prefixes, _ in store.uses] == [{key[:13]}]

    async def test_what_is_left_is_written_at_the_end(self, store: FakeStore, clock: Clock) -> None:
        directory = KeyDirectory(store, secret_key=SECRET_KEY, clock=clock)
        directory.start()
        key = store.make()
        await directory.find(key)
        await directory.stop()
        assert [prefixes for prefixes, _ in store.uses] == [{key[:13]}]
        assert store.num_closed == 2, "each thread's connection is closed"
