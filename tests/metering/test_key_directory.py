"""Who holds which key: found, changed elsewhere, offline, callers without a key, and uses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio
from django.contrib.auth.models import User
from django.db import OperationalError, connection

from metering import api_keys as keys
from metering import errors, key_directory, services
from metering.api_keys import AccountRecord, KeyRecord, MembershipRecord, person_principal
from metering.audit import COMMAND
from metering.key_directory import REFRESH_EVERY_S, DatabaseKeyStore, KeyDirectory
from metering.models import Account, ApiKey, Budget
from metering.principal import ALL_SCOPES, Principal, RateLimits, Scope

SECRET_KEY = "django's"
SECRET = keys.digest_secret(SECRET_KEY)
GIVE_UP_S = 60.0


@dataclass
class FakeStore(DatabaseKeyStore):
    """``is_away`` fails every query as the database does. ``may_go_on`` holds queries up."""

    records: dict[str, KeyRecord] = field(default_factory=dict)
    accounts: dict[str, AccountRecord] = field(default_factory=dict)
    uses: list[tuple[set[str], float]] = field(default_factory=list)
    may_go_on: threading.Event = field(default_factory=threading.Event)
    is_away: bool = False
    number: int = 1
    num_revisions: int = 0
    num_reads: int = 0
    num_closed: int = 0

    def __post_init__(self) -> None:
        self.may_go_on.set()

    def make(self, account: str = "research", word: str = "", **changes: Any) -> str:
        """A new key of that account; ``word``: one that was chosen elsewhere."""
        made = keys.make_key()
        key = word or made.key
        prefix = keys.imported_prefix(word, SECRET) if word else made.prefix
        principal = Principal(account=account, key=prefix)
        record = KeyRecord(digest=keys.digest_of(key, SECRET), principal=principal)
        self.records[prefix] = replace(record, **changes)
        self.number += 1
        return key

    def change(self, key: str, **changes: Any) -> None:
        self.records[key[:13]] = replace(self.records[key[:13]], **changes)
        self.number += 1

    def revision(self) -> int:
        self._query()
        self.num_revisions += 1
        return self.number

    def keys(self, prefix: str | None = None) -> dict[str, KeyRecord]:
        self.num_reads += 1
        found = dict(self.records)
        self._query()
        return found

    def built_in_accounts(self) -> dict[str, AccountRecord]:
        self._query()
        return dict(self.accounts)

    def record_uses(self, prefixes: Collection[str], used_unix_s: float) -> None:
        self._query()
        self.uses.append((set(prefixes), used_unix_s))

    def close(self) -> None:
        self.num_closed += 1

    def _query(self) -> None:
        if self.is_away:
            raise OperationalError("the server is gone")
        self.may_go_on.wait(GIVE_UP_S)


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def clock() -> list[float]:
    """What time it is: the only entry."""
    return [1_700_000_000.0]


@pytest_asyncio.fixture
async def directory(store: FakeStore, clock: list[float]) -> AsyncIterator[KeyDirectory]:
    """Makes the directory of a gateway that runs, on ``store``."""
    made = KeyDirectory(store, secret_key=SECRET_KEY, clock=lambda: clock[0])
    made.start()
    yield made
    store.may_go_on.set()
    await made.stop()


async def refusal(found: Awaitable[object]) -> type[errors.MeteringError] | None:
    try:
        await found
    except errors.MeteringError as error:
        return type(error)
    return None


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(GIVE_UP_S):
        while not condition():
            await asyncio.sleep(0.01)


async def until_refused(
    directory: KeyDirectory, key: str, wanted: type[errors.MeteringError]
) -> None:
    async with asyncio.timeout(GIVE_UP_S):
        while await refusal(directory.find(key)) is not wanted:
            await asyncio.sleep(0.01)


async def until_read(store: FakeStore) -> None:
    """A whole read that begins now."""
    store.number += 1
    seen = store.num_revisions
    await until(lambda: store.num_revisions >= seen + 2)


def forged(key: str) -> str:
    return key[:-1] + ("a" if key[-1] != "a" else "b")


async def test_keys_are_in_memory_and_a_new_one_is_read_when_it_is_used(
    directory: KeyDirectory, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(key_directory, "REFRESH_EVERY_S", GIVE_UP_S * 9)
        key = store.make()
        principal = await directory.find(key)
        assert (principal.account, principal.key) == ("research", keys.prefix_of(key))
        with pytest.raises(StopIteration) as ended:
            directory.find(key).send(None)  # without giving up the event loop
        assert ended.value.value is principal
        assert await directory.find_by_prefix(principal.key) is principal
        for word in (forged(key), "", "sk-placeholder", "hx-short"):
            assert await refusal(directory.find(word)) is errors.InvalidKeyError
        assert (await directory.find(store.make("other"))).account == "other", "made a moment ago"
    await refusal(directory.find(keys.make_key().key))  # its reader begins to wait anew
    word = "sk-team-0123456789"  # others, such as SDKs' placeholders, need no query
    assert directory.prefix_of(word) is None
    store.make(word=word)
    await until(lambda: directory.prefix_of(word) is not None)
    assert (await directory.find(word)).account == "research"
    assert directory.prefix_of("placeholder") is None


async def test_what_changes_is_read_again(directory: KeyDirectory, store: FakeStore) -> None:
    key, disabled, gone, other = (store.make(name) for name in ("research", "a", "b", "other"))
    before = await directory.find(key)
    num_revisions, num_reads = store.num_revisions, store.num_reads
    unknown = [directory.find(keys.make_key().key) for _ in range(1000)]
    refused = await asyncio.gather(*(refusal(one) for one in unknown))
    assert set(refused) == {errors.InvalidKeyError}
    assert store.num_revisions - num_revisions <= 2 and store.num_reads == num_reads, "a query"
    store.change(key, principal=replace(before, budgets=(7,)))
    await until_read(store)
    assert (await directory.find(key)).budgets == (7,)
    store.change(key, is_revoked=True)
    await until_refused(directory, key, errors.RevokedKeyError)
    assert await refusal(directory.find_by_prefix(key[:13])) is errors.RevokedKeyError
    store.change(disabled, account_enabled=False)
    await until_refused(directory, disabled, errors.DisabledAccountError)
    del store.records[gone[:13]]
    store.number += 1
    await until_refused(directory, gone, errors.InvalidKeyError)
    assert (await directory.find(other)).account == "other"
    assert REFRESH_EVERY_S <= 0.5, "a revocation counts within a second"
    key = store.make()  # the read has the old row when the key is revoked
    store.may_go_on.clear()
    num_reads = store.num_reads
    finding = asyncio.create_task(directory.find(key))
    while store.num_reads == num_reads:
        store.may_go_on.set()
        await asyncio.sleep(0)
        store.may_go_on.clear()
    store.change(key, is_revoked=True)
    store.may_go_on.set()
    await refusal(finding)
    await until_refused(directory, key, errors.RevokedKeyError)


async def test_an_expired_or_refused_holder_is_named_for_the_record(
    directory: KeyDirectory, store: FakeStore, clock: list[float]
) -> None:
    key = store.make()
    principal = await directory.find(key)
    expired = replace(principal, expires_unix_s=clock[0])
    for change in ({"is_revoked": True}, {"account_enabled": False}, {"principal": expired}):
        refused = store.make(**{"principal": principal} | change)
        with pytest.raises(errors.KeyRefusedError) as caught:
            await directory.find(refused)
        assert (caught.value.account, caught.value.key) == (principal.account, principal.key)
        with pytest.raises(
            errors.InvalidKeyError
        ) as unknown:  # who does not hold it learns nothing
            await directory.find(forged(refused))
        assert (unknown.value.account, unknown.value.key) == ("", "")
    await directory.write_uses()
    assert store.uses[-1] == ({key[:13]}, clock[0]), "refused keys are not used"
    store.change(key, principal=replace(principal, expires_unix_s=clock[0] + 10))
    await until_read(store)
    clock[0] += 9.9
    await directory.find(key)
    clock[0] += 0.1
    assert await refusal(directory.find(key)) is errors.ExpiredKeyError


async def test_built_in_accounts_are_read_as_keys_are(
    directory: KeyDirectory, store: FakeStore
) -> None:
    not_read = KeyDirectory(store, secret_key=SECRET_KEY)
    assert not_read.anonymous().is_anonymous and not_read.shared().account == "shared"
    limits = RateLimits(requests_per_minute=3)
    for name in ("anonymous", "shared"):
        store.accounts[name] = AccountRecord(name=name, weight=4, limits=limits, budgets=(1, 2))
    store.number += 1
    await until(lambda: directory.anonymous().budgets == (1, 2))
    anonymous, shared = directory.anonymous(), directory.shared()
    assert anonymous.is_anonymous and anonymous.scopes == {Scope.INFERENCE}
    assert (anonymous.account, anonymous.weight) == ("anonymous", 4)
    assert anonymous.account_limits == shared.account_limits == limits
    assert (shared.account, shared.is_anonymous) == ("shared", False)
    for_operators = {Scope.FLEET_WRITE, Scope.ACCOUNTS_READ, Scope.ACCOUNTS_WRITE}
    assert shared.scopes == ALL_SCOPES - for_operators
    store.accounts = {"anonymous": AccountRecord(name="anonymous", enabled=False)}
    store.number += 1
    await until_read(store)
    with pytest.raises(errors.DisabledAccountError):
        directory.anonymous()


async def test_offline_known_keys_keep_working_and_others_cannot_be_checked(
    directory: KeyDirectory, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, unknown = store.make(), keys.make_key().key
    await directory.find(known)
    assert await refusal(directory.find(unknown)) is errors.InvalidKeyError
    store.is_away = True
    store.change(known, is_revoked=True)
    other = store.make()
    for key in (unknown, other):  # it may exist by now
        assert await refusal(directory.find(key)) is errors.DirectoryUnavailableError
    assert (await directory.find(known)).account == "research"
    store.is_away = False
    await until_refused(directory, known, errors.RevokedKeyError)
    known = other  # one that hangs, and our own mistake, are outages too
    assert (await directory.find(other)).account == "research"
    with monkeypatch.context() as patch:
        patch.setattr(key_directory, "LOOK_UP_TIMEOUT_S", 0.05)
        store.may_go_on.clear()
        assert await refusal(directory.find(store.make())) is errors.DirectoryUnavailableError
        store.may_go_on.set()
    store.keys = None  # type: ignore[assignment, method-assign]
    store.number += 1
    await until_refused(directory, keys.make_key().key, errors.DirectoryUnavailableError)
    assert (await directory.find(known)).account == "research"


async def test_a_use_is_written_once_a_minute_in_a_batch_and_not_lost_offline(
    store: FakeStore, clock: list[float]
) -> None:
    directory = KeyDirectory(store, secret_key=SECRET_KEY, clock=lambda: clock[0])
    directory.start()
    first, second = store.make(), store.make()
    for _ in range(5):
        await directory.find(first)
        await directory.find(second)
    store.is_away = True
    await directory.write_uses()
    assert store.uses == []
    store.is_away = False
    await directory.write_uses()
    assert store.uses == [({first[:13], second[:13]}, clock[0])]
    clock[0] += 59
    await directory.find(first)
    await directory.write_uses()
    assert len(store.uses) == 1
    clock[0] += 1
    await directory.find(first)
    await directory.stop()
    assert store.uses[1:] == [({first[:13]}, clock[0])], "also at the end"
    assert store.num_closed >= 2, "after the error, and at the end"


@pytest.mark.django_db(transaction=True)
def test_what_the_directory_reads_and_writes_and_a_key_that_is_revoked_elsewhere(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway gets no message: its directory reads the revision."""
    own = {"actor": COMMAND, "account": account}
    first, second = (services.key_create(**own) for _ in range(2))

    def revoke() -> None:
        services.key_revoke(actor=COMMAND, key=first.row)
        anonymous = Account(name="anonymous", requests_per_minute=7)
        changed = {"account": anonymous, "changed_fields": ["requests_per_minute"]}
        services.account_update(actor=COMMAND, **changed)
        connection.close()

    async def scenario() -> None:
        directory = KeyDirectory()
        directory.start()
        for made in (first, second):
            assert (await directory.find(made.key)).account == "research"
        await asyncio.to_thread(revoke)
        await until_refused(directory, first.key, errors.RevokedKeyError)
        await until(lambda: directory.anonymous().account_limits.requests_per_minute == 7)
        assert (await directory.find(second.key)).account == "research"
        await directory.stop()

    asyncio.run(scenario())
    assert not ApiKey.objects.filter(last_used_at=None).exists()
    store, cap = DatabaseKeyStore(), {"unit": "tokens", "cap": 5}
    budget = Budget(account=account, **cap)
    of_the_account = services.budget_create(actor=own["actor"], budget=budget)
    third = services.key_create(caps=[Budget(**cap), Budget(**cap)], **own).row
    found = store.keys()
    budgets = tuple(third.budgets.order_by("id").values_list("id", flat=True))
    assert found[third.prefix].principal.budgets == (*budgets, of_the_account.pk)
    prefix = second.row.prefix
    assert found[prefix].principal.budgets == (of_the_account.pk,)
    assert (store.keys(prefix), store.keys("hx-unknown")) == ({prefix: found[prefix]}, {})
    user, other = User.objects.create_user("bob"), User.objects.create_user("eve")
    services.membership_set(user=user, role="owner", **own)
    memberships = store.memberships(user.pk)
    assert [(one.account.name, one.role) for one in memberships] == [("research", "owner")]
    assert store.memberships(other.pk) == ()
    assert store.built_in_accounts().keys() == {"anonymous", "shared"}
    later = datetime(2100, 1, 1, tzinfo=UTC)
    for used_unix_s in (later.timestamp(), 1000.0):  # a later use stays
        store.record_uses([*found], used_unix_s)
    assert {key.last_used_at for key in ApiKey.objects.all()} == {later}


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
    assert not keys.is_key_of(forged(made.key), digest, SECRET)
    assert not keys.is_key_of(made.key, digest, keys.digest_secret("another"))
    for word in (
        *("", "sk-placeholder", "hx-0123456789", "HX-0123456789-" + "a" * 32),
        *("hx-0123456789-" + "a" * number for number in (31, 33)),
        *("hx-012345678" + end + "-" + "a" * 32 for end in ("", "é", "٣")),
        *("hx-0123456789-" + "a" * number + "\n" for number in (31, 32)),
    ):
        assert keys.prefix_of(word) is None, word


def test_what_people_may_do() -> None:
    """In the account in which they may do most; staff may see the fleet, superusers change it."""
    viewer = MembershipRecord(account=AccountRecord(name="a"), role="viewer")
    member = MembershipRecord(account=AccountRecord(name="b"), role="member")
    disabled = MembershipRecord(account=AccountRecord(name="c", enabled=False), role="owner")
    all_, fleet = (viewer, member, disabled), {Scope.USAGE_READ, Scope.FLEET_READ}
    for user, held, named, account, scopes in (
        (User(), all_, None, "b", {Scope.INFERENCE, Scope.USAGE_READ}),
        (User(), all_, "a", "a", {Scope.USAGE_READ}),
        (User(is_staff=True), (viewer,), None, "a", fleet),
        (User(is_staff=True, is_superuser=True), (viewer,), None, "a", fleet | {Scope.FLEET_WRITE}),
    ):
        principal = person_principal(user, held, named)
        assert (principal.account, principal.scopes) == (account, scopes)
    for held, named, error in (
        (all_, "c", errors.DisabledAccountError),
        (all_, "d", errors.NoAccountError),
        ((), None, errors.NoAccountError),
    ):
        with pytest.raises(error):
            person_principal(User(), held, named)
