"""Gateways on a database that fails, in a few lines."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from django.db import OperationalError

from inference.protocol.events import Usage
from metering.ledger import store
from metering.ledger.entries import Operation
from metering.ledger.pending_writes import Outcome, PendingWrite, PendingWrites, Waiter
from metering.models import Budget, LedgerEntry


class FlakyDatabase:
    """Fails once at a chosen place: before the transaction, or after its commit."""

    def __init__(self) -> None:
        self.fault: str | None = None

    def apply(self, operations: Sequence[Operation], *, using: str) -> list[store.Result]:
        fault, self.fault = self.fault, None
        if fault == "locked":
            raise OperationalError("database is locked")
        if fault == "before":
            raise OperationalError("the server is gone")
        results = store.apply(operations, using=using)
        if fault == "after":
            raise OperationalError("the connection broke")
        return results


class AliveKeys:
    """Stands for as much of Redis as the control needs of it."""

    def __init__(self) -> None:
        self.alive: set[str] = set()

    def exists(self, name: str) -> bool:
        return name in self.alive


@dataclass
class Request:
    id: str
    gateway: Gateway
    budgets: tuple[int, ...]
    prompt_tokens: int
    """The bound that is reserved."""
    output_tokens: int | None
    """Asked for."""
    waiter: Waiter
    num_output_tokens: int = 0
    """Granted."""
    used: Usage | None = None
    is_gone: bool = False
    """Refused, or given up before it was submitted."""
    ended_unix_s: float = 0.0


@dataclass
class Gateway:
    name: str
    pending: PendingWrites
    database: FlakyDatabase
    requests: list[Request] = field(default_factory=list)
    is_alive: bool = True

    def queue(self, operation: Operation, waiter: Waiter | None = None) -> None:
        self.pending.add(PendingWrite(operation, time.monotonic(), waiter))


def notify_at_once(completed: Sequence[tuple[Waiter, Outcome]]) -> None:
    for waiter, outcome in completed:
        if not waiter.done():
            waiter.set_result(outcome)


def used_of(budget: Budget, entries: list[LedgerEntry]) -> int:
    if budget.unit == "micro_usd":
        return sum(entry.cost_micro_usd for entry in entries)
    return sum(entry.prompt_tokens + entry.completion_tokens for entry in entries)


def is_in_window(budget: Budget, at_unix_s: float) -> bool:
    if budget.window == "balance":
        return True
    ends_s = budget.window_ends_unix_s
    if ends_s is None:
        return False
    length_s = 86_400 if budget.window == "day" else budget.window_s
    assert length_s is not None
    return ends_s - length_s <= at_unix_s < ends_s
