"""Inserts of many rows, and values that both SQLite and PostgreSQL can store. For the writes of
each request: models and their queries would cost more than the database."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import overload

import msgspec
from django.db.backends.utils import CursorWrapper

EPOCH = datetime(1970, 1, 1)
MAX_INT64 = 2**63 - 1

Value = int | str | msgspec.Raw | None
"""``Raw``: JSON, for a column of JSON."""
Row = Sequence[Value]


MAX_BATCHES = 400
"""Batches of one call: the control has other work. The next call continues."""
PAUSE_S = 0.02
"""Between two batches, for SQLite's other writers."""


def in_batches(batch: Callable[[], int]) -> int:
    """Calls ``batch``, a transaction that returns how many rows it took, until none is left."""
    total = 0
    for _ in range(MAX_BATCHES):
        if not (num_rows := batch()):
            break
        total += num_rows
        time.sleep(PAUSE_S)
    return total


def insert_rows(
    cursor: CursorWrapper, table: str, columns: Sequence[str], rows: Sequence[Row], then: str = ""
) -> None:
    """``then``: ``ON CONFLICT`` and ``RETURNING``. PostgreSQL gets the rows as one JSON parameter,
    because psycopg quotes each parameter in Python."""
    names = ", ".join(f'"{name}"' for name in columns)
    insert = f"INSERT INTO {table} ({names})"
    if cursor.db.vendor == "postgresql":
        text = msgspec.json.encode([dict(zip(columns, row, strict=True)) for row in rows]).decode()
        given = f"jsonb_populate_recordset(NULL::{table}, %s::jsonb)"
        cursor.execute(f"{insert} SELECT {names} FROM {given} {then}", [text])
    else:
        values = [
            bytes(value).decode() if isinstance(value, msgspec.Raw) else value
            for value in flat(rows)
        ]
        places = rows_of_marks(len(rows), len(columns))
        cursor.execute(f"{insert} VALUES {places} {then}", values)


def rows_of_marks(num_rows: int, width: int) -> str:
    return ", ".join([f"({marks(width)})"] * num_rows)


def marks(number: int) -> str:
    return ", ".join(["%s"] * number)


def flat(rows: Iterable[Row]) -> list[Value]:
    return [value for row in rows for value in row]


def stored_moment(unix_us: int) -> str:
    """As Django stores it in SQLite: in UTC, without a zone. PostgreSQL's connections have UTC."""
    return str(EPOCH + timedelta(microseconds=unix_us))


def stored_text(text: str, max_chars: int) -> str:
    """A client's JSON may hold lone surrogates and NULs, which no database stores as text."""
    if len(text) > max_chars:
        text = text[:max_chars]
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()
    return text.replace("\0", "") if "\0" in text else text


@overload
def bounded(number: int, most: int = ...) -> int: ...
@overload
def bounded(number: int | None, most: int = ...) -> int | None: ...
def bounded(number: int | None, most: int = MAX_INT64) -> int | None:
    """Limited to the column's range: one refused row would block its batch."""
    if number is None or 0 <= number <= most:
        return number
    return 0 if number < 0 else most
