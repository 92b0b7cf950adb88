"""The control worker's periodic tasks for the ledger. Names and periods are in
``helexa_site.celery``. When Redis or the database is away the next tick tries again.
"""

from __future__ import annotations

import logging
import time
from datetime import timedelta

import redis
from django.conf import settings
from django.db import Error as DatabaseError

from fleet import live, selectors
from helexa_site.celery import TASK_FORGET_LEDGER_ENTRIES, TASK_SETTLE_ORPHANS, app
from metering import orphans, retention
from metering.receipts import Receipts

logger = logging.getLogger(__name__)


@app.task(name=TASK_SETTLE_ORPHANS)  # type: ignore[untyped-decorator]
def settle_orphans() -> None:
    client = live.redis_client()
    now_unix_s = time.time()
    try:
        orphans.accounts_settle(
            client=client,
            prices_of=selectors.catalogue_prices,
            receipts=Receipts(settings.SECRET_KEY),
            now_unix_s=now_unix_s,
        )
        orphans.reservations_sweep(client=client, now_unix_s=now_unix_s)
    except (redis.RedisError, OSError, DatabaseError) as error:
        logger.warning("requests of gateways that died are not settled: %s", error)


@app.task(name=TASK_FORGET_LEDGER_ENTRIES)  # type: ignore[untyped-decorator]
def forget_ledger_entries() -> None:
    days = settings.CONFIG.ledger_retention_days
    if days == 0:
        return
    try:
        num_forgotten = retention.ledger_entries_forget(older_than=timedelta(days=days))
    except DatabaseError as error:
        logger.warning("old ledger entries not forgotten: %s", error)
        return
    if num_forgotten:
        logger.info("forgot %d ledger entries older than %d days", num_forgotten, days)
