"""The control worker's periodic tasks for the ledger. Names and periods are in
``helexa_site.celery``. When the database is offline the next tick retries."""

from __future__ import annotations

import logging
import time
from datetime import timedelta

from django.conf import settings
from django.db import Error as DatabaseError
from django.utils import timezone

from fleet.control.leadership import this_control
from helexa_site.celery import (
    TASK_FORGET_LEDGER_ENTRIES,
    TASK_FORGET_REQUEST_RECORDS,
    TASK_SWEEP_ORPHANS,
    app,
)
from metering import retention
from metering.ledger.orphans import SweepPause, reservations_sweep

logger = logging.getLogger(__name__)


sweep_pause = SweepPause(this_control)


@app.task(name=TASK_SWEEP_ORPHANS)  # type: ignore[untyped-decorator]
def sweep_orphans() -> None:
    """Releases dead gateways' reservations, once the database has answered for a while."""
    try:
        if sweep_pause.is_over:
            reservations_sweep(now_unix_s=time.time())
    except DatabaseError as error:
        sweep_pause.database_failed()
        logger.warning("reservations of gateways that died are not released: %s", error)


@app.task(name=TASK_FORGET_LEDGER_ENTRIES)  # type: ignore[untyped-decorator]
def forget_ledger_entries() -> None:
    days = settings.CONFIG.ledger_retention_days
    if days == 0:
        return
    try:
        before = timezone.now() - timedelta(days=days)
        num_forgotten = retention.ledger_entries_forget(before=before)
    except DatabaseError as error:
        logger.warning("old ledger entries not forgotten: %s", error)
        return
    if num_forgotten:
        logger.info("forgot %d ledger entries older than %d days", num_forgotten, days)


@app.task(name=TASK_FORGET_REQUEST_RECORDS)  # type: ignore[untyped-decorator]
def forget_request_records() -> None:
    config = settings.CONFIG
    days = config.request_retention_days
    before = timezone.now() - timedelta(days=days) if days else None
    try:
        num_forgotten = retention.request_records_forget(
            before=before, max_rows=config.max_request_records
        )
        captured_before = timezone.now() - timedelta(days=config.capture_retention_days)
        num_captured = retention.captured_requests_forget(before=captured_before)
    except DatabaseError as error:
        logger.warning("old request records not forgotten: %s", error)
        return
    if num_forgotten:
        logger.info("forgot %d request records", num_forgotten)
    if num_captured:
        logger.info("forgot the captured bodies of %d requests", num_captured)
