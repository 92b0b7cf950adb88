"""A key store in memory, with a database that can go away, and a clock that a test moves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from django.db import OperationalError

from metering import api_keys as keys
from metering.api_keys import AccountRecord, KeyRecord
from metering.key_directory import DatabaseKeyStore
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
    num_revisions: int = 0
    num_reads: int = 0
    uses: list[tuple[set[str], float]] = field(default_factory=list)
    may_go_on: threading.Event = field(default_factory=threading.Event)
    num_closed: int = 0

    def __post_init__(self) -> None:
        self.may_go_on.set()

    def make(self, account: str = "research", word: str = "", **changes: object) -> str:
        """A new key of that account; ``word``: one that was chosen elsewhere."""
        made = keys.make_key()
        key, secret = word or made.key, keys.digest_secret(SECRET_KEY)
        prefix = keys.imported_prefix(word, secret) if word else made.prefix
        record = KeyRecord(
            digest=keys.digest_of(key, secret), principal=Principal(account=account, key=prefix)
        )
        self.records[prefix] = replace(record, **changes)  # type: ignore[arg-type]
        self.number += 1
        return key

    def change(self, key: str, **changes: object) -> None:
        prefix = keys.prefix_of(key)
        assert prefix is not None
        self.records[prefix] = replace(self.records[prefix], **changes)  # type: ignore[arg-type]
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


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(GIVE_UP_S):
        while not condition():
            await asyncio.sleep(0.01)
