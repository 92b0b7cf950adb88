"""A writer on a database with faults, and the loop that runs it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from django.db import IntegrityError, OperationalError

from metering.ledger import store
from metering.ledger.entries import Granted, Operation, Reserve, Settle
from metering.ledger.writer import LedgerWriter
from metering.models import Budget
from tests.metering.operations import reserve

LONG_S = 120.0


class Database:
    """``store.apply`` with faults."""

    def __init__(self) -> None:
        self.is_away = False
        self.breaks_after_commit = False
        self.is_locked = False
        self.panics: str | None = None
        """A request whose operation raises a ``BaseException``."""
        self.refuses: str | None = None
        """A request whose reservation and entry the database will not hold."""
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


def amounts(using: str, budget_id: int) -> tuple[int, int]:
    budget = Budget.objects.using(using).get(id=budget_id)
    return budget.spent, budget.reserved


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
