"""The directory while the database is away, and under a flood of keys that are none."""

from __future__ import annotations

import asyncio

import pytest

from metering.errors import (
    DirectoryUnavailableError,
    InvalidKeyError,
    MeteringError,
    RevokedKeyError,
)
from metering.keys import api_key as keys
from metering.keys import directory as directory_module
from metering.keys.directory import KeyDirectory
from tests.metering.keys.directory_support import (
    FakeStore,
    rounds,
    until_refused,
)


class TestOutage:
    async def test_known_keys_keep_working_and_unknown_ones_cannot_be_checked(
        self, directory: KeyDirectory, store: FakeStore
    ) -> None:
        known, other = store.make(), store.make()
        await directory.find(known)
        store.is_away = True
        for _ in range(3):
            assert (await directory.find(known)).account == "research"
            with pytest.raises(DirectoryUnavailableError):
                await directory.find(other)
            with pytest.raises(DirectoryUnavailableError):
                await directory.find(keys.make_key().key)

    async def test_a_key_known_to_be_unknown_cannot_be_checked_either(
        self, directory: KeyDirectory, store: FakeStore
    ) -> None:
        """It may have been made since."""
        key = keys.make_key().key
        with pytest.raises(InvalidKeyError):
            await directory.find(key)
        store.is_away = True
        await until_refused(directory, key, DirectoryUnavailableError)

    async def test_it_ends_by_itself(self, directory: KeyDirectory, store: FakeStore) -> None:
        key = store.make()
        store.is_away = True
        with pytest.raises(DirectoryUnavailableError):
            await directory.find(key)
        store.is_away = False
        await rounds(store)
        assert (await directory.find(key)).account == "research"

    async def test_a_revocation_during_it_counts_after_it(
        self, directory: KeyDirectory, store: FakeStore
    ) -> None:
        key = store.make()
        await directory.find(key)
        store.is_away = True
        store.change(key, is_revoked=True)
        await directory.find(key)
        store.is_away = False
        await until_refused(directory, key, RevokedKeyError)

    async def test_a_database_that_hangs(
        self, directory: KeyDirectory, store: FakeStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(directory_module, "LOOK_UP_TIMEOUT_S", 0.05)
        store.may_go_on.clear()
        with pytest.raises(DirectoryUnavailableError):
            await directory.find(store.make())

    async def test_our_own_mistake_while_reading_is_an_outage(
        self, directory: KeyDirectory, store: FakeStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        known = store.make()
        await directory.find(known)
        store.keys = None  # type: ignore[assignment, method-assign]
        with pytest.raises(DirectoryUnavailableError):
            await directory.find(keys.make_key().key)
        assert "keys were not read" in caplog.text
        assert (await directory.find(known)).account == "research"


class TestFlood:
    async def test_one_query_at_a_time_whatever_is_sent(
        self, directory: KeyDirectory, store: FakeStore
    ) -> None:
        known = store.make()
        await directory.find(known)
        before = len(store.asked)

        async def try_one() -> type[Exception]:
            try:
                await directory.find(keys.make_key().key)
            except MeteringError as error:
                return type(error)
            raise AssertionError("a garbage key was found")

        refusals = await asyncio.gather(*(try_one() for _ in range(1000)))
        assert refusals.count(InvalidKeyError) == directory_module.MAX_LOOK_UPS
        assert set(refusals) == {InvalidKeyError, DirectoryUnavailableError}
        assert len(store.asked) - before <= 2
        assert store.most_open == 1
        assert (await directory.find(known)).account == "research"

    async def test_those_who_send_one_unknown_key_share_a_look_up(
        self, directory: KeyDirectory, store: FakeStore
    ) -> None:
        key = store.make()
        found = await asyncio.gather(*(directory.find(key) for _ in range(1000)))
        assert {principal.account for principal in found} == {"research"}
        assert sum(key[:13] in asked for asked in store.asked) == 1

    async def test_garbage_pushes_out_no_key(
        self, directory: KeyDirectory, store: FakeStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(directory_module, "MAX_REMEMBERED", 5)
        known = [store.make() for _ in range(5)]
        for key in known:
            await directory.find(key)
        for _ in range(20):
            with pytest.raises(InvalidKeyError):
                await directory.find(keys.make_key().key)
        num_asked = len(store.asked)
        for key in known:
            await directory.find(key)
        assert len(store.asked) == num_asked
        await directory.find(store.make())
        await directory.find(known[-1])
        assert len(store.asked) == num_asked + 1, "the longest unused one made room"
