"""Who holds which key, with a store in memory: hits, changes, outages and floods."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Collection
from dataclasses import replace

import pytest
import pytest_asyncio

from metering import directory as directory_module
from metering import keys
from metering.directory import REFRESH_EVERY_S, KeyDirectory
from metering.errors import (
    DirectoryUnavailableError,
    DisabledAccountError,
    ExpiredKeyError,
    InvalidKeyError,
    MeteringError,
    NoAccountError,
    RevokedKeyError,
)
from metering.key_records import AccountRecord, KeyRecord, MembershipRecord
from metering.principal import ALL_SCOPES, RateLimits, Scope
from tests.metering.directory_support import SECRET_KEY, Clock, FakeStore, Person, until


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest_asyncio.fixture
async def directory(store: FakeStore, clock: Clock) -> AsyncIterator[KeyDirectory]:
    made = KeyDirectory(store, secret_key=SECRET_KEY, clock=clock)
    made.start()
    yield made
    store.may_go_on.set()
    await made.stop()


async def rounds(store: FakeStore, number: int = 2) -> None:
    """Until the database has been read so often again; two are one whole round."""
    seen = store.revisions
    await until(lambda: store.revisions >= seen + number)


async def until_refused(directory: KeyDirectory, key: str, refusal: type[Exception]) -> None:
    async def is_refused() -> bool:
        try:
            await directory.find(key)
        except refusal:
            return True
        except MeteringError:
            return False
        return False

    async with asyncio.timeout(60):
        while not await is_refused():
            await asyncio.sleep(0.01)


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


async def test_who_does_not_hold_the_key_is_not_told_that_it_was_revoked(
    directory: KeyDirectory, store: FakeStore
) -> None:
    key = store.make(is_revoked=True)
    with pytest.raises(RevokedKeyError):
        await directory.find(key)
    with pytest.raises(InvalidKeyError):
        await directory.find(key[:14] + "x" * 32)


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


class TestOutage:
    async def test_known_keys_keep_working_and_unknown_ones_cannot_be_told(
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

    async def test_a_key_known_to_be_unknown_cannot_be_told_either(
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
