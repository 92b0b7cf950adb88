"""Databases with metering's tables, beside the one that pytest-django makes.

Writers commit in threads of their own, which a test's transaction would hide from each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import dj_database_url
from django.db import connections
from django.db.models import Model

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
