"""One batch of operations, applied to the database in one transaction. SQLite and PostgreSQL.

    lock the budgets, in the order of their ids
    read what the batch's requests hold
    insert ledger entries; those that are there already charge nothing
    the book's arithmetic, in memory
    write hourly sums, reservations and budgets, each changed row once
    insert the records of the requests whose entry was inserted

Raw SQL, a statement or two a table whatever the batch's size: this runs for every request. Every
writer locks in this order, budgets, then entries by request id, then sums by key, then records, so
that two of them never wait for each other in a circle.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, cast

from django.db import connections, transaction
from django.db.backends.utils import CursorWrapper

from metering.errors import QuotaExceededError
from metering.ledger.book import Book, BudgetState, Unit
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
from metering.ledger.windows import Window
from metering.models import LedgerEntry
from metering.request_records.rows import Record, insert_records

logger = logging.getLogger(__name__)

Result = Granted | QuotaExceededError | None
"""What a ``Reserve`` came to; ``None`` for the other operations."""
Value = int | str | datetime | None
Row = Sequence[Value]

EPOCH, NAIVE_EPOCH = datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1)
HOUR_US = 3_600_000_000
MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1

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
    """The result of each operation, in their order. All of them are committed, or none and it
    raises the database's error. Each operation names its request's budgets."""
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        return _apply(operations, cursor, using)


def _apply(operations: Sequence[Operation], cursor: CursorWrapper, using: str) -> list[Result]:
    budgets = _locked_budgets(cursor, using, {id for op in operations for id in op.budgets})
    owners = {op.request_id: op.gateway_id for op in operations if isinstance(op, Reserve)}
    before = _held(cursor, budgets, {op.request_id for op in operations if op.budgets}, owners)
    book = Book(budgets, {request_id: dict(held) for request_id, held in before.items()})
    settles = {op.request_id: op for op in reversed(operations) if isinstance(op, Settle)}
    entries = {request_id: _entry(settles[request_id], using) for request_id in sorted(settles)}
    inserted = _insert_entries(cursor, entries)
    results = [_perform(book, op, settles, inserted) for op in operations]
    _add_to_hours(
        cursor, using, [(settles[request_id], entries[request_id]) for request_id in inserted]
    )
    _write_held(cursor, before, book.held, owners)
    _write_budgets(cursor, [budgets[id] for id in sorted(book.changed)])
    written = [settles[request_id] for request_id in sorted(inserted)]
    insert_records([Record(one, one.record) for one in written if one.record], using=using)
    return results


def _perform(
    book: Book, operation: Operation, settles: dict[str, Settle], inserted: set[str]
) -> Result:
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
            is_first = settles[operation.request_id] is operation
            if not is_first or operation.request_id not in inserted:
                book.release(operation.request_id)
            elif book.settle(operation):
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
        f"window_ends_unix_s FROM metering_budget WHERE id IN ({_marks(len(wanted))}) "
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
    """What these requests hold on these budgets. Adds to ``owners`` the gateways that hold it."""
    held: dict[str, dict[int, int]] = {}
    if not budgets or not request_ids:
        return held
    cursor.execute(
        "SELECT request_id, budget_id, amount, gateway_id FROM metering_reservation "
        f"WHERE request_id IN ({_marks(len(request_ids))})",
        list(request_ids),
    )
    for request_id, budget_id, amount, gateway_id in cursor.fetchall():
        if budget_id in budgets:
            held.setdefault(request_id, {})[budget_id] = amount
            owners.setdefault(request_id, gateway_id)
    return held


def _insert_entries(cursor: CursorWrapper, entries: dict[str, Row]) -> set[str]:
    """Ids of the requests whose entry was not there before."""
    if not entries:
        return set()
    cursor.execute(
        _insert("metering_ledgerentry", LEDGER_COLUMNS, len(entries))
        + " ON CONFLICT (request_id) DO NOTHING RETURNING request_id",
        _flat(entries.values()),
    )
    return {row[0] for row in cursor.fetchall()}


def _entry(settle: Settle, using: str) -> Row:
    """Words are cut to what the columns hold and numbers bounded: one entry that a database
    refuses would hold up all that come after it."""
    first_token_ms = settle.time_to_first_token_ms
    return (
        settle.request_id,
        _stored(_ended_us(settle), using),
        *map(_word, words_of(settle), MAX_CHARS),
        *map(_bounded, used_of(settle)),
        None if first_token_ms is None else _bounded(first_token_ms, MAX_INT32),
        _bounded(settle.duration_ms),
        settle.metered.unit,
        _bounded(settle.metered.num_units),
    )


def _add_to_hours(cursor: CursorWrapper, using: str, entries: list[tuple[Settle, Row]]) -> None:
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
        (_stored(key[0] * HOUR_US, using), *key[1:], *map(_bounded, sums[key]))
        for key in sorted(sums, key=str)
    ]
    grown = ", ".join(f"{name} = {_grown(name)}" for name in SUMS)
    cursor.execute(
        _insert("metering_usagehour", (*HOUR_KEYS, *SUMS), len(rows))
        + f' ON CONFLICT (hour, account, "key", model) DO UPDATE SET {grown}',
        _flat(rows),
    )


def _grown(name: str) -> str:
    """An hour's sum, which stays at the greatest integer instead of passing it: SQLite would store
    a float, and PostgreSQL would refuse the batch each time."""
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
            f"(VALUES {_rows_of_marks(len(ended), 2)})",
            _flat(ended),
        )
    held_now = [
        (request_id, budget_id, amount, owners[request_id])
        for request_id, held in after.items()
        for budget_id, amount in held.items()
        if before.get(request_id, {}).get(budget_id) != amount
    ]
    if held_now:
        columns = ("request_id", "budget_id", "amount", "gateway_id")
        cursor.execute(
            _insert("metering_reservation", columns, len(held_now))
            + " ON CONFLICT (request_id, budget_id) DO UPDATE SET amount = excluded.amount",
            _flat(held_now),
        )


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
    """Rounded down, as the book rounds, so that an entry lies in the window that it is charged
    to."""
    return int(settle.ended_unix_s * 1_000_000)


def _stored(unix_us: int, using: str) -> Value:
    """A time as Django stores it: SQLite's are text in UTC without a zone."""
    if connections[using].features.supports_timezones:
        return EPOCH + timedelta(microseconds=unix_us)
    return str(NAIVE_EPOCH + timedelta(microseconds=unix_us))


def _word(text: str, max_chars: int) -> str:
    if len(text) <= max_chars and "\0" not in text:
        return text
    return text[:max_chars].replace("\0", "")


def _bounded(number: int, maximum: int = MAX_INT64) -> int:
    return number if 0 <= number <= maximum else min(max(number, 0), maximum)


def _flat(rows: Iterable[Row]) -> list[Value]:
    return [value for row in rows for value in row]


def _marks(count: int) -> str:
    return ", ".join(["%s"] * count)


def _rows_of_marks(count: int, width: int) -> str:
    return ", ".join([f"({_marks(width)})"] * count)


def _insert(table: str, columns: tuple[str, ...], count: int) -> str:
    names = ", ".join(f'"{name}"' for name in columns)
    return f"INSERT INTO {table} ({names}) VALUES {_rows_of_marks(count, len(columns))}"
