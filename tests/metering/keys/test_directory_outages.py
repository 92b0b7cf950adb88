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
    async def test_known_keys_keep_working_and_others_cannot_be_checked_until_it_ends(
        self, directory: KeyDirectory, store: FakeStore
    ) -> None:
        known, other = store.make(), store.make()
        unknown = keys.make_key().key
        await directory.find(known)
        with pytest.raises(InvalidKeyError):
            await directory.find(unknown)
        store.is_away = True
        store.change(known, is_revoked=True)
        await until_refused(directory, unknown, DirectoryUnavailableError)  # it may exist by now
        for _ in range(3):
            assert (await directory.find(known)).account == "research"
            for one in (other, keys.make_key().key):
                with pytest.raises(DirectoryUnavailableError):
                    await directory.find(one)
        store.is_away = False
        await until_refused(directory, known, RevokedKeyError)
        await rounds(store)
        assert (await directory.find(other)).account == "research"

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
