"""Forgets old request records, and those over the most that are kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

from django.db.models import Max, QuerySet

from metering.models import RequestRecord

ROWS_PER_BATCH = 500
MAX_BATCHES = 400
"""How many batches one call deletes; the next call continues."""
PAUSE_S = 0.02
"""Between two batches: SQLite's other writers get their turn."""


def request_records_forget(
    *,
    before: datetime | None,
    max_rows: int,
    pause: Callable[[float], object] = time.sleep,
) -> int:
    """How many; each batch is a transaction of its own. ``before``: ended earlier; ``None`` and 0
    rows: no limit.

    The size is that of the ids: they grow by one for each row, so counting a large table is not
    needed.
    """
    num_forgotten = 0
    for _ in range(MAX_BATCHES):
        ids = _due(before, max_rows)
        if not ids:
            break
        if num_forgotten:
            pause(PAUSE_S)
        RequestRecord.objects.filter(pk__in=ids).delete()
        num_forgotten += len(ids)
    return num_forgotten


def _due(before: datetime | None, max_rows: int) -> list[int]:
    """The ids of the next batch."""
    if before is not None:
        old = _first_ids(RequestRecord.objects.filter(at__lt=before).order_by("at"))
        if old:
            return old
    newest = RequestRecord.objects.aggregate(id=Max("pk"))["id"] if max_rows else None
    if newest is None:
        return []
    return _first_ids(RequestRecord.objects.filter(pk__lte=newest - max_rows).order_by("pk"))


def _first_ids(records: QuerySet[RequestRecord]) -> list[int]:
    return list(records.values_list("pk", flat=True)[:ROWS_PER_BATCH])
