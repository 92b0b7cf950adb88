"""Finds the principal of a key, on the gateway's event loop, for each request.

All keys are in memory. One task reads the revision every 0.4 s, and sooner where a request waits;
where the revision has changed, it reads all keys again. So a revocation counts within a second on
every gateway, and however many unknown keys are sent, there is one small query at a time. While the
database is offline, known keys stay valid, and others raise ``DirectoryUnavailableError``: they may
be valid.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import TypeVar

from django.conf import settings
from django.db import Error, connection, connections
from django.db.models import Q

from inference.supervised_threads import SupervisedPool
from metering.api_keys import (
    IMPORTED_MARK,
    AccountRecord,
    KeyRecord,
    MembershipRecord,
    digest_secret,
    imported_prefix,
    prefix_of,
)
from metering.errors import DirectoryUnavailableError, InvalidKeyError
from metering.models import Account, ApiKey, Budget, Membership, Revision
from metering.principal import (
    ANONYMOUS_ACCOUNT,
    BUILT_IN_ACCOUNTS,
    SHARED_ACCOUNT,
    Principal,
    Scope,
)

logger = logging.getLogger(__name__)

REFRESH_EVERY_S = 0.4
LOOK_UP_EVERY_S = 0.02
"""The shortest interval of reads, however many unknown keys are sent."""
LOOK_UP_TIMEOUT_S = 4.5
NOTE_USE_EVERY_S, WRITE_USES_EVERY_S = 60.0, 10.0
CLOSE_TIMEOUT_S = 2.0

Result = TypeVar("Result")


class KeyDirectory:
    """``start`` and ``stop`` it on the event loop of its callers. ``clock`` is Unix time."""

    def __init__(
        self,
        store: DatabaseKeyStore | None = None,
        *,
        secret_key: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store or DatabaseKeyStore()
        self._secret = digest_secret(secret_key or settings.SECRET_KEY)
        self._clock = clock
        self._keys: dict[str, KeyRecord] = {}
        self._accounts: dict[str, AccountRecord] = {}
        self._has_imported = False
        self._revision: int | None = None
        self._is_offline = False
        self._next_read = asyncio.Event()
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._noted_s: dict[str, float] = {}
        self._unwritten: set[str] = set()
        self._write_uses_at_s = 0.0

    def start(self) -> None:
        if self._task is None:
            self._thread = SupervisedPool(1, thread_name_prefix="keys")
            self._task = asyncio.create_task(self._run(), name="key directory")

    async def stop(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait({self._task})
        self._task = None
        self._is_offline = True
        self._next_read.set()
        with contextlib.suppress(TimeoutError):  # a query may hang
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self.write_uses()
                await self._in_thread(self._store.close)
        self._thread.shutdown(wait=False)

    async def find(self, presented_key: str) -> Principal:
        """Raises ``KeyRefusedError``, ``DirectoryUnavailableError``."""
        prefix = self.prefix_of(presented_key)
        if prefix is None:
            raise InvalidKeyError("The API key is not valid.")
        record = self._keys.get(prefix) or await self._look_up(prefix)
        now_s = self._clock()
        principal = record.principal_for(presented_key, secret=self._secret, now_unix_s=now_s)
        if now_s - self._noted_s.get(prefix, 0.0) >= NOTE_USE_EVERY_S:
            self._noted_s[prefix] = now_s
            self._unwritten.add(prefix)
        return principal

    def prefix_of(self, presented_key: str) -> str | None:
        """``None`` for a text that has no key's form and was not imported."""
        if (prefix := prefix_of(presented_key)) is not None or not self._has_imported:
            return prefix
        prefix = imported_prefix(presented_key, self._secret)
        return prefix if prefix in self._keys else None

    async def find_by_prefix(self, prefix: str) -> Principal:
        """Raises ``KeyRefusedError``, ``DirectoryUnavailableError``."""
        record = self._keys.get(prefix) or await self._look_up(prefix)
        return record.principal_now(self._clock())

    def anonymous(self) -> Principal:
        """Raises ``DisabledAccountError``."""
        return self._built_in(ANONYMOUS_ACCOUNT)

    def shared(self) -> Principal:
        """Raises ``DisabledAccountError``."""
        return self._built_in(SHARED_ACCOUNT)

    def _built_in(self, name: str) -> Principal:
        """Without limits until the database was read once: nothing is served before."""
        return self._accounts.get(name, AccountRecord(name=name)).principal()

    async def _look_up(self, prefix: str) -> KeyRecord:
        is_answered = not self._is_offline
        if is_answered:
            next_read = self._next_read
            self._wanted.set()
            try:
                async with asyncio.timeout(LOOK_UP_TIMEOUT_S):
                    await next_read.wait()
            except TimeoutError:
                is_answered = False
        if record := self._keys.get(prefix):
            return record
        if is_answered and not self._is_offline:
            raise InvalidKeyError("The API key is not valid.")
        raise DirectoryUnavailableError(
            "This API key cannot be looked up now: the database does not answer. Try again shortly."
        )

    async def _run(self) -> None:
        while True:
            read, self._next_read = self._next_read, asyncio.Event()
            self._wanted.clear()
            try:
                await self._read()
                if self._clock() >= self._write_uses_at_s:
                    self._write_uses_at_s = self._clock() + WRITE_USES_EVERY_S
                    await self.write_uses()
            except Exception as error:
                if not isinstance(error, DirectoryUnavailableError):
                    logger.exception("keys were not read")
                if not self._is_offline:
                    logger.warning("API keys are those in memory: %s", error)
                self._is_offline = True
            finally:
                read.set()
            await asyncio.sleep(LOOK_UP_EVERY_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_EVERY_S - LOOK_UP_EVERY_S):
                    await self._wanted.wait()

    async def _read(self) -> None:
        """Reads the revision first: a change that is committed meanwhile shows in the next read."""
        revision = await self._in_thread(self._store.revision)
        if revision != self._revision:
            accounts = await self._in_thread(self._store.built_in_accounts)
            self._keys = await self._in_thread(self._store.keys)
            self._accounts = accounts
            self._has_imported = any(prefix.startswith(IMPORTED_MARK) for prefix in self._keys)
            self._revision = revision
        if self._is_offline:
            logger.info("API keys can be looked up again")
            self._is_offline = False

    async def write_uses(self) -> None:
        """Each at most once a minute. A failed write is repeated with the next batch."""
        if not (batch := frozenset(self._unwritten)):
            return
        latest_s = max(self._noted_s[prefix] for prefix in batch)
        try:
            await self._in_thread(lambda: self._store.record_uses(batch, latest_s))
            self._unwritten -= batch
        except DirectoryUnavailableError as error:
            logger.warning("when %d keys were used was not written: %s", len(batch), error)

    async def _in_thread(self, query: Callable[[], Result]) -> Result:
        """After an error the connection is closed, so that the next query opens a new one."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, query)
        except Error as error:
            await loop.run_in_executor(self._thread, self._store.close)
            raise DirectoryUnavailableError("the database does not answer") from error


class DatabaseKeyStore:
    """The directory's reads. Each method blocks and raises ``django.db.Error``."""

    def revision(self) -> int:
        """0 before the migrations. In SQL: each gateway asks several times a second, and the ORM
        would take most of that."""
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT number FROM {Revision._meta.db_table} ORDER BY id LIMIT 1")
            row = cursor.fetchone()
        return row[0] if row else 0

    def keys(self, prefix: str | None = None) -> dict[str, KeyRecord]:
        keys = ApiKey.objects.all() if prefix is None else ApiKey.objects.filter(prefix=prefix)
        accounts = _budgets(Q(account__in=keys.order_by().values("account")), "account_id")
        own = _budgets(Q(key__in=keys.order_by()), "key_id")
        return {
            row.prefix: key_record(row, (*own[row.prefix], *accounts[row.account_id]))
            for row in keys.select_related("account")
        }

    def memberships(self, user_id: int) -> tuple[MembershipRecord, ...]:
        rows = list(Membership.objects.filter(user=user_id).select_related("account"))
        budgets = _budgets(Q(account__in={row.account_id for row in rows}), "account_id")
        return tuple(
            MembershipRecord(
                account=account_record(row.account, budgets[row.account_id]), role=row.role
            )
            for row in rows
        )

    def account(self, name: str) -> AccountRecord:
        """Raises ``Account.DoesNotExist``."""
        row = Account.objects.get(name=name)
        return account_record(row, _budgets(Q(account=name), "account_id")[name])

    def built_in_accounts(self) -> dict[str, AccountRecord]:
        budgets = _budgets(Q(account__in=BUILT_IN_ACCOUNTS), "account_id")
        rows = Account.objects.filter(name__in=BUILT_IN_ACCOUNTS)
        return {row.name: account_record(row, budgets[row.name]) for row in rows}

    def record_uses(self, prefixes: Collection[str], used_unix_s: float) -> None:
        """A later use that another gateway has recorded stays."""
        used_at = datetime.fromtimestamp(used_unix_s, UTC)
        earlier = Q(last_used_at__isnull=True) | Q(last_used_at__lt=used_at)
        ApiKey.objects.filter(earlier, prefix__in=prefixes).update(last_used_at=used_at)

    def close(self) -> None:
        connections.close_all()


def key_record(row: ApiKey, budgets: tuple[int, ...]) -> KeyRecord:
    known_scopes = {scope.value for scope in Scope}
    principal = Principal(
        account=row.account_id,
        key=row.prefix,
        scopes=frozenset(Scope(word) for word in row.scopes if word in known_scopes),
        models=frozenset(row.model_names) or None,
        weight=row.account.weight,
        budgets=budgets,
        key_limits=row.limits,
        account_limits=row.account.limits,
        names_end_user=row.names_end_user,
        may_leave_network=row.may_leave_network,
        capture_until_unix_s=_latest_unix_s(row.capture_until, row.account.capture_until),
        expires_unix_s=None if row.expires_at is None else row.expires_at.timestamp(),
    )
    return KeyRecord(
        digest=row.digest,
        principal=principal,
        account_enabled=row.account.enabled,
        is_revoked=row.revoked_at is not None,
    )


def account_record(row: Account, budgets: tuple[int, ...]) -> AccountRecord:
    return AccountRecord(
        name=row.name,
        enabled=row.enabled,
        weight=row.weight,
        limits=row.limits,
        budgets=budgets,
        capture_until_unix_s=_latest_unix_s(row.capture_until),
    )


def _latest_unix_s(*moments: datetime | None) -> float | None:
    return max((moment.timestamp() for moment in moments if moment is not None), default=None)


def _budgets(where: Q, owner: str) -> defaultdict[str, tuple[int, ...]]:
    ids: defaultdict[str, tuple[int, ...]] = defaultdict(tuple)
    for name, budget in Budget.objects.filter(where).order_by("id").values_list(owner, "id"):
        ids[name] += (budget,)
    return ids
