"""Finds the principal of a key, on the gateway's event loop, for each request.

    find(key) ─▶ remembered? ── yes ─▶ digest, revoked, disabled, expired ─▶ Principal
                     │ no
                     ▼
                 next round ─▶ one thread reads the revision, the wanted keys and, where the
                               revision has changed, everything that is remembered

One task reads the database, one round after the other: every 0.4 s, and sooner where a request
waits for a key that is not cached. So a revocation counts within a second on every gateway, and
however many unknown keys are sent, there is one query at a time. While the database is offline,
cached keys stay valid, and others raise ``DirectoryUnavailableError``: they may be valid.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from django.conf import settings

from inference.supervised_threads import SupervisedPool
from metering.errors import DirectoryUnavailableError, InvalidKeyError
from metering.keys.api_key import digest_secret, imported_prefix, prefix_of
from metering.keys.records import AccountRecord, KeyRecord
from metering.keys.store import DatabaseKeyStore
from metering.principal import ANONYMOUS_ACCOUNT, SHARED_ACCOUNT, Principal

logger = logging.getLogger(__name__)

REFRESH_EVERY_S = 0.4
LOOK_UP_EVERY_S = 0.02
"""The shortest interval of rounds, however many unknown keys are sent."""
LOOK_UP_TIMEOUT_S = 4.5
MAX_REMEMBERED = 10_000
"""Keys, and as many unknown prefixes."""
MAX_LOOK_UPS = 256
UNKNOWN_FOR_S = 10.0
"""An unknown prefix is looked up again after this, or when anything has changed."""
NOTE_USE_EVERY_S, WRITE_USES_EVERY_S = 60.0, 10.0
MAX_NOTED = 10_000
CLOSE_TIMEOUT_S = 2.0

Result = TypeVar("Result")
Value = TypeVar("Value")


@dataclass(slots=True)
class _Round:
    prefixes: set[str] = field(default_factory=set)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_full(self) -> bool:
        return len(self.prefixes) >= MAX_LOOK_UPS


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
        self._keys: OrderedDict[str, KeyRecord] = OrderedDict()
        self._unknown_until: OrderedDict[str, float] = OrderedDict()
        self._accounts: dict[str, AccountRecord] = {}
        self._imported: frozenset[str] = frozenset()
        """The prefixes of imported keys: keys of another form need no query."""
        self._revision: int | None = None
        self._is_offline = False
        self._next = _Round()
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.uses = KeyUses(self._store)

    def start(self) -> None:
        if self._task is not None:
            return
        self._thread = SupervisedPool(1, thread_name_prefix="keys")
        self._task = asyncio.create_task(self._run(), name="key directory")
        self.uses.start()

    async def stop(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait({self._task})
        self._task = None
        self._next.over.set()
        await close_thread(self._thread, self._store)
        await self.uses.stop()

    async def find(self, presented_key: str) -> Principal:
        """Raises ``KeyRefusedError``, ``DirectoryUnavailableError``. A text without the form of a
        key is refused also while the database is offline."""
        prefix = self.prefix_of(presented_key)
        if prefix is None:
            raise InvalidKeyError("The API key is not valid.")
        record = self._keys.get(prefix)
        if record is None:
            record = await self._look_up_key(prefix)
        else:
            self._keys.move_to_end(prefix)
        now_s = self._clock()
        principal = record.principal_for(presented_key, secret=self._secret, now_unix_s=now_s)
        self.uses.note(prefix, now_s)
        return principal

    def prefix_of(self, presented_key: str) -> str | None:
        if (prefix := prefix_of(presented_key)) is not None or not self._imported:
            return prefix
        prefix = imported_prefix(presented_key, self._secret)
        return prefix if prefix in self._imported else None

    async def find_by_prefix(self, prefix: str) -> Principal:
        """Raises ``KeyRefusedError``, ``DirectoryUnavailableError``."""
        record = self._keys.get(prefix) or await self._look_up_key(prefix)
        return record.principal_now(self._clock())

    def anonymous(self) -> Principal:
        """Raises ``DisabledAccountError``."""
        return self._built_in(ANONYMOUS_ACCOUNT)

    def shared(self) -> Principal:
        """Raises ``DisabledAccountError``."""
        return self._built_in(SHARED_ACCOUNT)

    def _built_in(self, name: str) -> Principal:
        """The principal of a built-in account, without limits until the database has been read
        once: nothing is served before."""
        return self._accounts.get(name, AccountRecord(name=name)).principal()

    async def _look_up_key(self, prefix: str) -> KeyRecord:
        if self._unknown_until.get(prefix, 0.0) <= self._clock():
            self._unknown_until.pop(prefix, None)
            await self._await_round(prefix)
        if record := self._keys.get(prefix):
            return record
        if prefix in self._unknown_until:
            raise InvalidKeyError("The API key is not valid.")
        raise _unavailable()

    async def _await_round(self, prefix: str) -> None:
        """Waits for the round that reads this prefix. Raises ``DirectoryUnavailableError``."""
        assert self._task is not None, "the directory was not started"
        following = self._next
        if self._is_offline or following.is_full:
            raise _unavailable()
        following.prefixes.add(prefix)
        self._wanted.set()
        try:
            async with asyncio.timeout(LOOK_UP_TIMEOUT_S):
                await following.over.wait()
        except TimeoutError:
            raise _unavailable() from None

    async def _run(self) -> None:
        while True:
            this, self._next = self._next, _Round()
            self._wanted.clear()
            try:
                await self._read(this)
            except DirectoryUnavailableError as error:
                self._forget_unknown(error)
            except Exception:
                logger.exception("keys were not read")
                self._forget_unknown(None)
            finally:
                this.over.set()
            await self._pause()

    async def _pause(self) -> None:
        await asyncio.sleep(LOOK_UP_EVERY_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REFRESH_EVERY_S - LOOK_UP_EVERY_S):
                await self._wanted.wait()

    async def _read(self, this: _Round) -> None:
        """Reads the revision first: a change that is committed meanwhile shows in the next round.
        Raises ``DirectoryUnavailableError``."""
        revision = await self._in_thread(self._store.revision)
        prefixes = this.prefixes
        has_changed = revision != self._revision
        if has_changed:
            prefixes |= self._keys.keys()
            accounts = await self._in_thread(self._store.built_in_accounts)
            imported = await self._in_thread(self._store.imported)
        keys = await self._in_thread(partial(self._store.keys, prefixes)) if prefixes else {}
        if has_changed:
            self._accounts = dict(accounts)
            self._imported = imported
            self._unknown_until.clear()
        self._cache_keys(prefixes, keys)
        self._revision = revision
        if self._is_offline:
            logger.info("API keys can be looked up again")
            self._is_offline = False

    def _cache_keys(self, asked: set[str], found: Mapping[str, KeyRecord]) -> None:
        until_s = self._clock() + UNKNOWN_FOR_S
        for prefix in asked:
            if prefix in found:
                _put(self._keys, prefix, found[prefix])
            else:
                self._keys.pop(prefix, None)
                _put(self._unknown_until, prefix, until_s)

    def _forget_unknown(self, error: DirectoryUnavailableError | None) -> None:
        """Forgets unknown keys: one may have been created since, and the database could not confirm
        it."""
        self._unknown_until.clear()
        if not self._is_offline:
            logger.warning("API keys are those remembered: %s", error or "see above")
            self._is_offline = True

    async def _in_thread(self, query: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, query)


def _put(remembered: OrderedDict[str, Value], prefix: str, value: Value) -> None:
    remembered[prefix] = value
    if len(remembered) > MAX_REMEMBERED:
        remembered.popitem(last=False)


def _unavailable() -> DirectoryUnavailableError:
    return DirectoryUnavailableError(
        "This API key cannot be looked up now: the database does not answer. Try again shortly."
    )


class KeyUses:
    """Records when each key was last used, at most once a minute: noted on the event loop, written
    in batches on a thread of its own, so that a write that waits for a lock delays no look-up. A
    failed write is retried with the next batch."""

    def __init__(self, store: DatabaseKeyStore) -> None:
        self._store = store
        self._noted: dict[str, float] = {}
        self._unwritten: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._thread = SupervisedPool(1, thread_name_prefix="key-uses")
        self._task = asyncio.create_task(self._run(), name="key uses")

    async def stop(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait({self._task})
        self._task = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self.write()
        await close_thread(self._thread, self._store)

    def note(self, prefix: str, now_s: float) -> None:
        noted_s = self._noted.get(prefix)
        if noted_s is not None and now_s - noted_s < NOTE_USE_EVERY_S:
            return
        self._noted.pop(prefix, None)
        self._noted[prefix] = now_s
        if len(self._noted) > MAX_NOTED:
            self._noted.pop(next(iter(self._noted)))
        self._unwritten.add(prefix)

    async def write(self) -> None:
        batch, self._unwritten = self._unwritten, set()
        if not batch:
            return
        latest_s = max(self._noted.get(prefix, 0.0) for prefix in batch)
        write = partial(self._store.record_uses, batch, latest_s)
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, write)
        except DirectoryUnavailableError as error:
            logger.warning("when %d keys were used was not written: %s", len(batch), error)
            self._unwritten |= batch

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(WRITE_USES_EVERY_S)
            try:
                await self.write()
            except Exception:
                logger.exception("when keys were used was not written")


async def close_thread(thread: SupervisedPool, store: DatabaseKeyStore) -> None:
    """Closes its connection, unless a hanging query keeps the thread."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await asyncio.get_running_loop().run_in_executor(thread, store.close)
    thread.shutdown(wait=False)
