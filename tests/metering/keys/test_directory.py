"""Who holds which key, with a store in memory: hits and changes."""

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
from metering.keys.directory import REFRESH_EVERY_S, KeyDirectory
from metering.keys.records import KeyRecord
from tests.metering.keys.directory_support import (
    Clock,
    FakeStore,
    rounds,
    until,
    until_refused,
)


async def test_a_key_is_found_and_remembered(directory: KeyDirectory, store: FakeStore) -> None:
    key = store.make()
    principal = await directory.find(key)
    assert principal.account == "research"
    assert principal.key == keys.prefix_of(key)
    for _ in range(100):
        assert await directory.find(key) is principal
    assert store.asked == [{principal.key}]


async def test_a_remembered_key_is_found_without_giving_up_the_event_loop(
    directory: KeyDirectory, store: FakeStore
) -> None:
    """No await on the way: the coroutine ends when it is first stepped."""
    key = store.make()
    principal = await directory.find(key)
    with pytest.raises(StopIteration) as ended:
        directory.find(key).send(None)
    assert ended.value.value is principal


async def test_a_wrong_secret_behind_a_known_prefix(
    directory: KeyDirectory, store: FakeStore
) -> None:
    key = store.make()
    await directory.find(key)
    forged = key[:-1] + ("a" if key[-1] != "a" else "b")
    with pytest.raises(InvalidKeyError):
        await directory.find(forged)
    assert len(store.asked) == 1


@pytest.mark.parametrize("word", ["", "sk-placeholder", "hx-short"])
async def test_what_is_no_key_costs_no_query(
    directory: KeyDirectory, store: FakeStore, word: str
) -> None:
    with pytest.raises(InvalidKeyError):
        await directory.find(word)
    assert store.asked == []


async def test_an_unknown_key_is_asked_for_once_until_something_changes(
    directory: KeyDirectory, store: FakeStore, clock: Clock
) -> None:
    key = keys.make_key().key
    for _ in range(3):
        with pytest.raises(InvalidKeyError):
            await directory.find(key)
    assert len(store.asked) == 1
    clock.now_s += directory_module.UNKNOWN_FOR_S
    with pytest.raises(InvalidKeyError):
        await directory.find(key)
    assert len(store.asked) == 2


async def test_a_key_that_is_made_after_it_was_unknown(
    directory: KeyDirectory, store: FakeStore
) -> None:
    key = store.make()
    record = store.records.pop(key[:13])
    with pytest.raises(InvalidKeyError):
        await directory.find(key)
    store.records[key[:13]] = record
    store.number += 1
    await rounds(store)
    assert (await directory.find(key)).account == "research"


async def test_what_changes_is_read_again(directory: KeyDirectory, store: FakeStore) -> None:
    key, other = store.make(), store.make("other")
    before = await directory.find(key)
    await directory.find(other)
    store.change(key, principal=replace(before, budgets=(7,)))
    await rounds(store)
    assert (await directory.find(key)).budgets == (7,)
    store.change(key, is_revoked=True)
    await until_refused(directory, key, RevokedKeyError)
    assert (await directory.find(other)).account == "other"
    assert REFRESH_EVERY_S <= 0.5, "a revocation counts within a second"


async def test_a_key_that_is_gone_is_unknown(directory: KeyDirectory, store: FakeStore) -> None:
    key = store.make()
    await directory.find(key)
    del store.records[key[:13]]
    store.number += 1
    await until_refused(directory, key, InvalidKeyError)


async def test_a_key_whose_account_is_disabled(directory: KeyDirectory, store: FakeStore) -> None:
    key = store.make()
    await directory.find(key)
    store.change(key, account_enabled=False)
    await until_refused(directory, key, DisabledAccountError)


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


async def test_who_does_not_hold_the_key_does_not_learn_that_it_was_revoked(
    directory: KeyDirectory, store: FakeStore
) -> None:
    key = store.make(is_revoked=True)
    with pytest.raises(RevokedKeyError):
        await directory.find(key)
    with pytest.raises(InvalidKeyError):
        await directory.find(key[:14] + "x" * 32)


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
    with pytest.raises(InvalidKeyError) as unknown:
        await directory.find(key[:14] + "x" * 32)
    assert (unknown.value.account, unknown.value.key) == ("", "")


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
