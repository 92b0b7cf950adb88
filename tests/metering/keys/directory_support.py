"""A key store in memory, with a database that can go away, and a clock that a test moves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from metering.errors import DirectoryUnavailableError, MeteringError
from metering.keys import api_key as keys
from metering.keys.directory import KeyDirectory
from metering.keys.records import AccountRecord, KeyRecord
from metering.keys.store import DatabaseKeyStore
from metering.principal import Principal

SECRET_KEY = "django's"
GIVE_UP_S = 60.0


@dataclass
class Clock:
    now_s: float = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class FakeStore(DatabaseKeyStore):
    """``is_away`` fails every query as the database does. ``may_go_on`` holds queries up."""

    records: dict[str, KeyRecord] = field(default_factory=dict)
    accounts: dict[str, AccountRecord] = field(default_factory=dict)
    number: int = 1
    is_away: bool = False
    revisions: int = 0
    asked: list[set[str]] = field(default_factory=list)
    uses: list[tuple[set[str], float]] = field(default_factory=list)
    may_go_on: threading.Event = field(default_factory=threading.Event)
    num_open: int = 0
    most_open: int = 0
    num_closed: int = 0

    def __post_init__(self) -> None:
        self.may_go_on.set()

    def make(self, account: str = "research", **changes: object) -> str:
        """A new key of that account, without a new revision."""
        made = keys.make_key()
        digest = keys.digest_of(made.key, keys.digest_secret(SECRET_KEY))
        principal = Principal(account=account, key=made.prefix)
        record = KeyRecord(digest=digest, principal=principal)
        self.records[made.prefix] = replace(record, **changes)  # type: ignore[arg-type]
        return made.key

    def change(self, key: str, **changes: object) -> None:
        prefix = keys.prefix_of(key)
        assert prefix is not None
        self.records[prefix] = replace(self.records[prefix], **changes)  # type: ignore[arg-type]
        self.number += 1

    def revision(self) -> int:
        self._query()
        self.revisions += 1
        return self.number

    def keys(self, prefixes: Collection[str]) -> dict[str, KeyRecord]:
        self.asked.append(set(prefixes))
        found = {name: self.records[name] for name in prefixes if name in self.records}
        self._query()
        return found

    def imported(self) -> frozenset[str]:
        return frozenset(prefix for prefix in self.records if prefix.startswith("im-"))

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
            raise DirectoryUnavailableError("the database does not answer")
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        self.may_go_on.wait(GIVE_UP_S)
        self.num_open -= 1


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(GIVE_UP_S):
        while not condition():
            await asyncio.sleep(0.01)


async def rounds(store: FakeStore, number: int = 2) -> None:
    """Waits until the database has been read so often again; two are one whole round."""
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

    async with asyncio.timeout(GIVE_UP_S):
        while not await is_refused():
            await asyncio.sleep(0.01)
