"""One batch of operations, applied to the database in one transaction: SQLite and PostgreSQL.

A statement or two a table, for any size of batch. Every writer locks in this order, budgets by id,
entries by request id, sums by key; records in a transaction of their own; so two never deadlock.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, cast

from django.db import connections, transaction
from django.db.backends.utils import CursorWrapper

from metering.errors import QuotaExceededError
from metering.ledger.book import Book, BudgetState, Unit, Window
from metering.ledger.entries import (
    TOKENS,
    WHO_AND_WHAT,
    Granted,
    Narrow,
    Operation,
    Release,
    Reserve,
    Settle,
)
from metering.models import GatewayLease, LedgerEntry, Reservation
from metering.sql import (
    MAX_INT64,
    Row,
    Value,
    bounded,
    flat,
    insert_rows,
    marks,
    rows_of_marks,
    stored_moment,
    stored_text,
)

logger = logging.getLogger(__name__)

Result = Granted | QuotaExceededError | None

HOUR_US = 3_600_000_000
MAX_INT32 = 2**31 - 1

USED = (*TOKENS, "cost_micro_usd")
WORDS = (*WHO_AND_WHAT, "outcome")
TIMES = ("time_to_first_token_ms", "duration_ms")
LEDGER_COLUMNS = ("request_id", "at", *WORDS, *USED, *TIMES, "unit", "num_units")
USED_FROM = LEDGER_COLUMNS.index(USED[0])
USED_TO = USED_FROM + len(USED)
MAX_CHARS: list[int] = [cast(Any, LedgerEntry._meta.get_field(name)).max_length for name in WORDS]
words_of, used_of = attrgetter(*WORDS), attrgetter(*USED)
SUMS = ("requests", "failed_requests", *USED)
HOUR_KEYS = ("hour", "account", "key", "model")


def apply(operations: Sequence[Operation], *, using: str = "default") -> list[Result]:
    """Results in the operations' order. Commits all of them or none, and raises the database's
    error then. Each operation names its request's budgets."""
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        return _apply(operations, cursor, using)


def _apply(operations: Sequence[Operation], cursor: CursorWrapper, using: str) -> list[Result]:
    budgets = _locked_budgets(cursor, using, {id for op in operations for id in op.budgets})
    owners = {op.request_id: op.gateway_id for op in operations if isinstance(op, Reserve)}
    before = _held(cursor, budgets, {op.request_id for op in operations if op.budgets}, owners)
    book = Book(budgets, {request_id: dict(held) for request_id, held in before.items()})
    settles = {op.request_id: op for op in reversed(operations) if isinstance(op, Settle)}
    entries = {request_id: _entry(settles[request_id]) for request_id in sorted(settles)}
    inserted = _insert_entries(cursor, entries)
    unpaid = set(inserted)
    results = [_perform(book, op, unpaid) for op in operations]
    _add_to_hours(cursor, [(settles[id], entries[id]) for id in inserted])
    _write_held(cursor, before, book.held, owners)
    _write_budgets(cursor, [budgets[id] for id in sorted(book.changed)])
    return results


def _perform(book: Book, operation: Operation, unpaid: set[str]) -> Result:
    """``unpaid``: whose first bill of this batch is charged. Takes out whom it charges."""
    match operation:
        case Reserve():
            try:
                return book.reserve(operation)
            except QuotaExceededError as error:
                return error
        case Narrow():
            book.narrow(operation)
        case Release():
            book.release(operation.request_id)
        case Settle():
            if operation.request_id not in unpaid:
                book.release(operation.request_id)
                return None
            unpaid.remove(operation.request_id)
            if book.settle(operation):
                logger.warning(
                    "request %s used more than was reserved: %d prompt and %d completion tokens",
                    operation.request_id,
                    operation.prompt_tokens,
                    operation.completion_tokens,
                )
    return None


def _locked_budgets(
    cursor: CursorWrapper, using: str, ids: Iterable[int]
) -> dict[int, BudgetState]:
    """SQLite's transactions hold the only write lock from their first statement."""
    wanted = sorted(ids)
    if not wanted:
        return {}
    lock = " FOR UPDATE" if connections[using].features.has_select_for_update else ""
    cursor.execute(
        'SELECT id, key_id IS NOT NULL, unit, cap, "window", window_s, spent, reserved, '
        f"window_ends_unix_s FROM metering_budget WHERE id IN ({marks(len(wanted))}) "
        f"ORDER BY id{lock}",
        wanted,
    )
    return {
        row[0]: BudgetState(
            id=row[0],
            owner="key" if row[1] else "account",
            unit=Unit(row[2]),
            cap=row[3],
            window=Window(row[4]),
            window_s=row[5],
            spent=row[6],
            reserved=row[7],
            window_ends_s=row[8],
        )
        for row in cursor.fetchall()
    }


def _held(
    cursor: CursorWrapper,
    budgets: dict[int, BudgetState],
    request_ids: set[str],
    owners: dict[str, str],
) -> dict[str, dict[int, int]]:
    held: dict[str, dict[int, int]] = {}
    if not budgets or not request_ids:
        return held
    cursor.execute(
        "SELECT request_id, budget_id, amount, gateway_id FROM metering_reservation "
        f"WHERE request_id IN ({marks(len(request_ids))})",
        list(request_ids),
    )
    for request_id, budget_id, amount, gateway_id in cursor.fetchall():
        if budget_id in budgets:
            held.setdefault(request_id, {})[budget_id] = amount
            owners.setdefault(request_id, gateway_id)
    return held


def _insert_entries(cursor: CursorWrapper, entries: dict[str, Row]) -> set[str]:
    if not entries:
        return set()
    once = "ON CONFLICT (request_id) DO NOTHING RETURNING request_id"
    insert_rows(cursor, "metering_ledgerentry", LEDGER_COLUMNS, [*entries.values()], once)
    return {row[0] for row in cursor.fetchall()}


def _entry(settle: Settle) -> Row:
    return (
        settle.request_id,
        stored_moment(_ended_us(settle)),
        *map(stored_text, words_of(settle), MAX_CHARS),
        *map(bounded, used_of(settle)),
        bounded(settle.time_to_first_token_ms, MAX_INT32),
        bounded(settle.duration_ms),
        settle.metered.unit,
        bounded(settle.metered.num_units),
    )


def _add_to_hours(cursor: CursorWrapper, entries: list[tuple[Settle, Row]]) -> None:
    sums: dict[tuple[int, Value, Value, Value], list[int]] = {}
    for settle, entry in entries:
        key = (_ended_us(settle) // HOUR_US, entry[2], entry[3], entry[4])
        total = sums.get(key)
        if total is None:
            total = sums[key] = [0] * len(SUMS)
        total[0] += 1
        total[1] += settle.is_failure
        for position, amount in enumerate(entry[USED_FROM:USED_TO], 2):
            total[position] += amount  # type: ignore[operator]
    if not sums:
        return
    rows = [
        (stored_moment(key[0] * HOUR_US), *key[1:], *map(bounded, sums[key]))
        for key in sorted(sums, key=str)
    ]
    grown = ", ".join(f"{name} = {_grown(name)}" for name in SUMS)
    add = f'ON CONFLICT (hour, account, "key", model) DO UPDATE SET {grown}'
    insert_rows(cursor, "metering_usagehour", (*HOUR_KEYS, *SUMS), rows, add)


def _grown(name: str) -> str:
    """Saturates: SQLite would store a float, and PostgreSQL would refuse the batch each time."""
    before, more = f"metering_usagehour.{name}", f"excluded.{name}"
    return f"CASE WHEN {before} > {MAX_INT64} - {more} THEN {MAX_INT64} ELSE {before} + {more} END"


def _write_held(
    cursor: CursorWrapper,
    before: dict[str, dict[int, int]],
    after: dict[str, dict[int, int]],
    owners: dict[str, str],
) -> None:
    ended = [
        (request_id, budget_id)
        for request_id, held in before.items()
        for budget_id in held
        if budget_id not in after.get(request_id, ())
    ]
    if ended:
        cursor.execute(
            "DELETE FROM metering_reservation WHERE (request_id, budget_id) IN "
            f"(VALUES {rows_of_marks(len(ended), 2)})",
            flat(ended),
        )
    held_now = [
        (request_id, budget_id, amount, owners[request_id])
        for request_id, held in after.items()
        for budget_id, amount in held.items()
        if before.get(request_id, {}).get(budget_id) != amount
    ]
    if held_now:
        columns = ("request_id", "budget_id", "amount", "gateway_id")
        change = "ON CONFLICT (request_id, budget_id) DO UPDATE SET amount = excluded.amount"
        insert_rows(cursor, "metering_reservation", columns, held_now, change)


def _write_budgets(cursor: CursorWrapper, budgets: list[BudgetState]) -> None:
    if budgets:
        cursor.executemany(
            "UPDATE metering_budget SET spent = %s, reserved = %s, window_ends_unix_s = %s "
            "WHERE id = %s",
            [
                (budget.spent, max(0, budget.reserved), budget.window_ends_s, budget.id)
                for budget in budgets
            ],
        )


def _ended_us(settle: Settle) -> int:
    """Rounded down, as the book rounds, so that an entry is in the window that it is charged to."""
    return int(settle.ended_unix_s * 1_000_000)


RELEASES_PER_BATCH = 200
LEASE_KEPT_S = 86_400


def reservations_sweep(
    *, now_unix_s: float, suspects: frozenset[str], using: str = "default"
) -> frozenset[str]:
    """Releases the reservations of dead gateways that no bill has settled; the next gateway of
    their data directory settles the others within seconds (``metering.ledger.spool``).

    A gateway counts as dead that two sweeps in a row find without a lease: ``suspects`` are the
    result of the sweep before. While the database was offline no lease was renewed and no bill
    written: they come between the two sweeps, also those of a gateway that was restarted meanwhile.
    """
    leases = GatewayLease.objects.using(using)
    alive = leases.filter(lease_until_unix_s__gte=int(now_unix_s)).values("gateway_id")
    orphans = Reservation.objects.using(using).exclude(gateway_id__in=alive)
    dead = frozenset(orphans.values_list("gateway_id", flat=True))
    rows = orphans.filter(gateway_id__in=dead & suspects).order_by("request_id")
    releases = [
        Release(request_id=id, budgets=tuple(budget for _, budget in held))
        for id, held in groupby(rows.values_list("request_id", "budget_id"), key=lambda row: row[0])
    ]
    for start in range(0, len(releases), RELEASES_PER_BATCH):
        apply(releases[start : start + RELEASES_PER_BATCH], using=using)
    if releases:
        logger.warning(
            "gateways died with %d requests that nobody has billed: what they had reserved is "
            "released",
            len(releases),
        )
    leases.filter(lease_until_unix_s__lt=now_unix_s - LEASE_KEPT_S).delete()
    return dead
