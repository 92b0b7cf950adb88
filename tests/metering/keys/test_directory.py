"""Who holds which key, with a store in memory: hits, changes, callers without a key, and uses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection
from dataclasses import replace

import pytest

from metering.errors import (
    DisabledAccountError,
    ExpiredKeyError,
    InvalidKeyError,
    KeyRefusedError,
    RevokedKeyError,
)
from metering.keys import api_key as keys
from metering.keys import directory as directory_module
from metering.keys.api_key import digest_of, digest_secret, imported_prefix
from metering.keys.directory import REFRESH_EVERY_S, KeyDirectory
from metering.keys.records import AccountRecord, KeyRecord
from metering.principal import ALL_SCOPES, Principal, RateLimits, Scope
from tests.metering.keys.directory_support import (
    SECRET_KEY,
    Clock,
    FakeStore,
    rounds,
    until,
    until_refused,
)


def forged(key: str) -> str:
    return key[:-1] + ("a" if key[-1] != "a" else "b")


async def test_a_key_is_found_and_remembered(directory: KeyDirectory, store: FakeStore) -> None:
    key = store.make()
    principal = await directory.find(key)
    assert principal.account == "research"
    assert principal.key == keys.prefix_of(key)
    for _ in range(100):
        assert await directory.find(key) is principal
    with pytest.raises(StopIteration) as ended:
        directory.find(key).send(None)  # without giving up the event loop
    assert ended.value.value is principal
    for word in (forged(key), "", "sk-placeholder", "hx-short"):
        with pytest.raises(InvalidKeyError):
            await directory.find(word)
    assert store.asked == [{principal.key}], "what is no key costs no query"


async def test_an_unknown_key_is_asked_for_once_until_something_changes(
    directory: KeyDirectory, store: FakeStore, clock: Clock
) -> None:
    key = store.make()
    record = store.records.pop(key[:13])
    for _ in range(3):
        with pytest.raises(InvalidKeyError):
            await directory.find(key)
    assert len(store.asked) == 1
    clock.now_s += directory_module.UNKNOWN_FOR_S
    with pytest.raises(InvalidKeyError):
        await directory.find(key)
    assert len(store.asked) == 2
    store.records[key[:13]] = record  # it is made now
    store.number += 1
    await rounds(store)
    assert (await directory.find(key)).account == "research"


async def test_what_changes_is_read_again(directory: KeyDirectory, store: FakeStore) -> None:
    key, disabled, gone, other = (store.make(name) for name in ("research", "a", "b", "other"))
    before = await directory.find(key)
    for one in (disabled, gone, other):
        await directory.find(one)
    store.change(key, principal=replace(before, budgets=(7,)))
    await rounds(store)
    assert (await directory.find(key)).budgets == (7,)
    store.change(key, is_revoked=True)
    await until_refused(directory, key, RevokedKeyError)
    store.change(disabled, account_enabled=False)
    await until_refused(directory, disabled, DisabledAccountError)
    del store.records[gone[:13]]
    store.number += 1
    await until_refused(directory, gone, InvalidKeyError)
    assert (await directory.find(other)).account == "other"
    assert REFRESH_EVERY_S <= 0.5, "a revocation counts within a second"


async def test_expiry_goes_by_the_clock_on_each_use(
    directory: KeyDirectory, store: FakeStore, clock: Clock
) -> None:
    key = store.make()
    prefix = key[:13]
    principal = replace(store.records[prefix].principal, expires_unix_s=clock.now_s + 10)
    store.change(key, principal=principal)
    assert await directory.find(key) == principal
    clock.now_s += 9.9
    await directory.find(key)
    clock.now_s += 0.1
    with pytest.raises(ExpiredKeyError):
        await directory.find(key)


async def test_a_refused_holder_is_named_for_the_record(
    directory: KeyDirectory, store: FakeStore, clock: Clock
) -> None:
    key = store.make()
    principal = await directory.find(key)
    expired = replace(principal, expires_unix_s=clock.now_s)
    for change in ({"is_revoked": True}, {"account_enabled": False}, {"principal": expired}):
        refused = store.make(**{"principal": principal} | change)
        with pytest.raises(KeyRefusedError) as caught:
            await directory.find(refused)
        assert (caught.value.account, caught.value.key) == (principal.account, principal.key)
        with pytest.raises(InvalidKeyError) as unknown:  # who does not hold it learns nothing
            await directory.find(forged(refused))
        assert (unknown.value.account, unknown.value.key) == ("", "")
    await directory.uses.write()
    assert store.uses == [({key[:13]}, clock.now_s)], "refused keys are not used"


async def test_a_change_while_a_key_is_looked_up_is_not_missed(
    directory: KeyDirectory, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look-up has read the old row when the key is revoked."""
    key = store.make()
    has_read, may_answer = threading.Event(), threading.Event()
    read = store.keys

    def read_slowly(prefixes: Collection[str]) -> dict[str, KeyRecord]:
        found = read(prefixes)
        has_read.set()
        may_answer.wait(60)
        return found

    monkeypatch.setattr(store, "keys", read_slowly)
    finding = asyncio.create_task(directory.find(key))
    await until(has_read.is_set)
    store.change(key, is_revoked=True)
    may_answer.set()
    assert (await finding).account == "research", "it was good when it was read"
    await until_refused(directory, key, RevokedKeyError)


class TestWithoutAKey:
    async def test_built_in_accounts_are_read_as_keys_are(
        self, directory: KeyDirectory, store: FakeStore
    ) -> None:
        not_read = KeyDirectory(store, secret_key=SECRET_KEY)
        assert not_read.anonymous().is_anonymous
        assert not_read.shared().account == "shared"
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
        store.accounts = {"anonymous": AccountRecord(name="anonymous", enabled=False)}
        store.number += 1
        await rounds(store)
        with pytest.raises(DisabledAccountError):
            directory.anonymous()
        store.is_away = True
        await asyncio.sleep(0)
        assert directory.shared().account == "shared"


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
