"""Deletes old ledger entries, request records and captured bodies. The ledger's hourly sums stay,
for reports."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

from django.db.models import Max

from metering.models import CapturedRequest, LedgerEntry, RequestRecord

Rows = type[LedgerEntry | RequestRecord | CapturedRequest]
ROWS_PER_BATCH: dict[Rows, int] = {LedgerEntry: 500, RequestRecord: 500, CapturedRequest: 10}
"""A captured request may have a megabyte of bodies, prompt and text."""
MAX_BATCHES = 400
"""Batches of one call: the control has other work. The next call continues."""
PAUSE_S = 0.02
"""Between two batches, for SQLite's other writers."""


def rows_forget(
    model: Rows,
    *,
    before: datetime | None,
    max_rows: int = 0,
    pause: Callable[[float], object] = time.sleep,
) -> int:
    """Deletes the rows that ended before ``before`` and those over ``max_rows``, oldest first, and
    returns how many. ``None`` and 0 rows: no limit.

    Each batch is a transaction of its own, and ``pause`` is called between two: the ticks, which
    write to the same database, wait for one batch at most.
    """
    num_forgotten = 0
    for _ in range(MAX_BATCHES):
        ids = _due(model, before, max_rows)
        if not ids:
            break
        if num_forgotten:
            pause(PAUSE_S)
        model._default_manager.filter(pk__in=ids).delete()
        num_forgotten += len(ids)
    return num_forgotten


def _due(model: Rows, before: datetime | None, max_rows: int) -> list[int]:
    """The size of a table is that of its ids: they grow by one for each row, so counting a large
    table is not needed."""
    rows, size = model._default_manager.values_list("pk", flat=True), ROWS_PER_BATCH[model]
    old = [] if before is None else list(rows.filter(at__lt=before).order_by("at")[:size])
    if old or not max_rows:
        return old
    newest = model._default_manager.aggregate(id=Max("pk"))["id"] or 0
    return list(rows.filter(pk__lte=newest - max_rows).order_by("pk")[:size])
