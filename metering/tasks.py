"""The control worker's periodic tasks for the ledger. Names and periods are in
``helexa_site.celery``. When the database is offline the next tick retries."""

from __future__ import annotations

import logging
import time
from datetime import timedelta

from django.conf import settings
from django.db import Error as DatabaseError
from django.utils import timezone

from helexa_site.celery import (
    TASK_FORGET_LEDGER_ENTRIES,
    TASK_FORGET_REQUEST_RECORDS,
    TASK_SWEEP_ORPHANS,
    app,
)
from metering.ledger.store import reservations_sweep
from metering.models import CapturedRequest, LedgerEntry, RequestRecord
from metering.retention import Rows, rows_forget

logger = logging.getLogger(__name__)


_suspects: frozenset[str] = frozenset()
"""The gateways that the last sweep found without a lease."""


@app.task(name=TASK_SWEEP_ORPHANS)  # type: ignore[untyped-decorator]
def sweep_orphans() -> None:
    global _suspects
    suspects, _suspects = _suspects, frozenset()
    try:
        _suspects = reservations_sweep(now_unix_s=time.time(), suspects=suspects)
    except DatabaseError as error:
        logger.warning("reservations of gateways that died are not released: %s", error)


@app.task(name=TASK_FORGET_LEDGER_ENTRIES)  # type: ignore[untyped-decorator]
def forget_ledger_entries() -> None:
    _forget(LedgerEntry, settings.CONFIG.ledger_retention_days)


@app.task(name=TASK_FORGET_REQUEST_RECORDS)  # type: ignore[untyped-decorator]
def forget_request_records() -> None:
    config = settings.CONFIG
    _forget(RequestRecord, config.request_retention_days, max_rows=config.max_request_records)
    _forget(CapturedRequest, config.capture_retention_days)


def _forget(model: Rows, days: int, *, max_rows: int = 0) -> None:
    """0 days: any age."""
    before = timezone.now() - timedelta(days=days) if days else None
    what = model._meta.verbose_name_plural
    try:
        num_forgotten = rows_forget(model, before=before, max_rows=max_rows)
    except DatabaseError as error:
        logger.warning("old %s not forgotten: %s", what, error)
        return
    if num_forgotten:
        logger.info("forgot %d old %s", num_forgotten, what)
