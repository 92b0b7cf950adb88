"""Callers without a key, and when keys were used."""

from __future__ import annotations

import asyncio

import pytest

from metering.errors import DisabledAccountError, InvalidKeyError, RevokedKeyError
from metering.keys.api_key import digest_of, digest_secret, imported_prefix
from metering.keys.directory import KeyDirectory
from metering.keys.records import AccountRecord, KeyRecord
from metering.principal import ALL_SCOPES, Principal, RateLimits, Scope
from tests.metering.keys.directory_support import (
    SECRET_KEY,
    Clock,
    FakeStore,
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
        for_operators = {Scope.FLEET_WRITE, Scope.ACCOUNTS_READ, Scope.ACCOUNTS_WRITE}
        assert shared.scopes == ALL_SCOPES - for_operators
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


async def test_an_imported_key_is_recognised_by_what_it_is(
    directory: KeyDirectory, store: FakeStore
) -> None:
    """Other words, such as SDKs' placeholders, need no query and stay anonymous."""
    secret = digest_secret(SECRET_KEY)
    prefix = imported_prefix("sk-team-0123456789", secret)
    store.records[prefix] = KeyRecord(
        digest=digest_of("sk-team-0123456789", secret),
        principal=Principal(account="research", key=prefix),
    )
    assert directory.prefix_of("sk-team-0123456789") is None
    store.number += 1
    await until(lambda: directory.prefix_of("sk-team-0123456789") == prefix)
    assert (await directory.find("sk-team-0123456789")).account == "research"
    assert directory.prefix_of("placeholder") is None
    with pytest.raises(InvalidKeyError):
        await directory.find("placeholder")
