"""Deletes old ledger entries, request records and captured bodies. The ledger's hourly sums stay,
for reports."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.db.models import Max, Model, QuerySet

from metering.models import CapturedRequest, LedgerEntry, RequestRecord

ROWS_PER_BATCH = 500
CAPTURES_PER_BATCH = 10
"""Each may have a megabyte of bodies, prompt and text."""
MAX_BATCHES = 400
"""Batches of one call: the control has other work. The next call continues."""
PAUSE_S = 0.02
"""Between two batches, for SQLite's other writers."""


def ledger_entries_forget(
    *, before: datetime, pause: Callable[[float], object] = time.sleep
) -> int:
    """Deletes the entries that ended before ``before`` and returns how many."""
    old = LedgerEntry.objects.filter(at__lt=before).order_by("at")
    return _forget_in_batches(LedgerEntry, lambda: _first_ids(old, ROWS_PER_BATCH), pause)


def request_records_forget(
    *,
    before: datetime | None,
    max_rows: int,
    pause: Callable[[float], object] = time.sleep,
) -> int:
    """Deletes the records that ended before ``before`` and those over ``max_rows``, oldest first,
    and returns how many. ``None`` and 0 rows: no limit.

    The size is that of the ids: they grow by one for each row, so counting a large table is not
    needed.
    """
    return _forget_in_batches(RequestRecord, lambda: _due(before, max_rows), pause)


def captured_requests_forget(
    *, before: datetime, pause: Callable[[float], object] = time.sleep
) -> int:
    """Deletes the captures made before ``before`` and returns how many; there are at most
    ``captures.MAX_ROWS``."""
    old = CapturedRequest.objects.filter(at__lt=before).order_by("pk")
    return _forget_in_batches(CapturedRequest, lambda: _first_ids(old, CAPTURES_PER_BATCH), pause)


def _forget_in_batches(
    model: type[Model], next_ids: Callable[[], list[int]], pause: Callable[[float], object]
) -> int:
    """Each batch is a transaction of its own, and ``pause`` is called between two: the ticks, which
    write to the same database, wait for one batch at most."""
    num_forgotten = 0
    for _ in range(MAX_BATCHES):
        ids = next_ids()
        if not ids:
            break
        if num_forgotten:
            pause(PAUSE_S)
        model._default_manager.filter(pk__in=ids).delete()
        num_forgotten += len(ids)
    return num_forgotten


def _due(before: datetime | None, max_rows: int) -> list[int]:
    if before is not None:
        old = _first_ids(RequestRecord.objects.filter(at__lt=before).order_by("at"), ROWS_PER_BATCH)
        if old:
            return old
    newest = RequestRecord.objects.aggregate(id=Max("pk"))["id"] if max_rows else None
    if newest is None:
        return []
    too_many = RequestRecord.objects.filter(pk__lte=newest - max_rows).order_by("pk")
    return _first_ids(too_many, ROWS_PER_BATCH)


def _first_ids(rows: QuerySet[Any], number: int) -> list[int]:
    return list(rows.values_list("pk", flat=True)[:number])
