"""Databases with metering's tables, beside the one that pytest-django makes, and gateways on them.

Writers commit in threads of their own, which a test's transaction would hide from each other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import dj_database_url
from django.db import IntegrityError, OperationalError, connections
from django.db.models import Model

from metering.ledger import store
from metering.ledger.entries import Granted, Operation, Reserve, Settle
from metering.ledger.pending_writes import PendingWrite, PendingWrites
from metering.ledger.writer import LedgerWriter
from metering.models import (
    Account,
    ApiKey,
    Budget,
    CapturedRequest,
    GatewayLease,
    LedgerEntry,
    RequestRecord,
    Reservation,
    SeriesRow,
    UsageHour,
)
from tests.metering.operations import reserve

LONG_S = 120.0
TABLES: tuple[type[Model], ...] = (
    Account,
    ApiKey,
    Budget,
    Reservation,
    GatewayLease,
    LedgerEntry,
    UsageHour,
    RequestRecord,
    CapturedRequest,
    SeriesRow,
)


@contextmanager
def metering_database(url: str, tables: Sequence[type[Model]] = TABLES) -> Iterator[str]:
    """Django's name of a database at ``url`` that has these tables, all empty."""
    using = "ledger"
    settings = dj_database_url.parse(url)
    if settings["ENGINE"] == "django.db.backends.sqlite3":
        settings["OPTIONS"] = {
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        }
    connections.settings[using] = connections.configure_settings(
        {"default": connections.settings["default"], using: dict(settings)}
    )[using]
    try:
        with connections[using].schema_editor() as editor:
            for model in tables:
                editor.create_model(model)
        yield using
        with connections[using].schema_editor() as editor:
            for model in reversed(tables):
                editor.delete_model(model)
    finally:
        connections[using].close()
        del connections[using]
        del connections.settings[using]


def clear(using: str) -> None:
    with connections[using].cursor() as cursor:
        for model in reversed(TABLES):
            cursor.execute(f"DELETE FROM {model._meta.db_table}")


class Database:
    """``store.apply`` with faults."""

    is_away = breaks_after_commit = is_locked = False
    panics: str | None = None
    """A request whose operation raises a ``BaseException``."""
    refuses: str | None = None
    """A request whose reservation and entry the database will not hold."""

    def __init__(self) -> None:
        self.batches: list[list[Operation]] = []

    def apply(self, operations: Sequence[Operation], *, using: str) -> list[store.Result]:
        if self.is_away:
            raise OperationalError("the server is gone")
        if self.is_locked:
            self.is_locked = False
            raise OperationalError("database is locked")
        for operation in operations:
            if operation.request_id == self.panics:
                raise SystemExit(1)
            if operation.request_id == self.refuses and isinstance(operation, Reserve | Settle):
                raise IntegrityError("no")
        results = store.apply(operations, using=using)
        self.batches.append(list(operations))
        if self.breaks_after_commit:
            self.breaks_after_commit = False
            raise OperationalError("the connection broke")
        return results


class Gateway:
    """A writer and its event loop, which runs while a test waits in it."""

    def __init__(
        self, using: str, runner: asyncio.Runner, *, gateway_id: str = "g1", **options: Any
    ) -> None:
        self.database = Database()
        self.writer = LedgerWriter(gateway_id, using=using, apply=self.database.apply, **options)
        self._runner = runner

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(work)

    def start(self) -> None:
        async def start() -> None:
            self.writer.start()

        self.run(start())

    def reserve(self, request_id: str = "r1", **changes: Any) -> Granted:
        granted: Granted = self.run(self.writer.reserve(reserve(request_id, **changes)))
        return granted

    def flush(self) -> None:
        assert self.run(self.writer.flush(LONG_S))


def write_all(pending: PendingWrites) -> None:
    """What is queued, and the records."""
    pending.add(PendingWrite(None, time.monotonic()))
    while pending.depth:
        pending.write()


def amounts(using: str, budget_id: int) -> tuple[int, int]:
    budget = Budget.objects.using(using).get(id=budget_id)
    return budget.spent, budget.reserved


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
