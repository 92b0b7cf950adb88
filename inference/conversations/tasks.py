"""Deletes responses older than the retention time. Name and period are in
``helexa_site.celery``."""

from __future__ import annotations

import logging
from datetime import timedelta

from django.conf import settings
from django.db import DatabaseError

from helexa_site.celery import TASK_FORGET_RESPONSES, app
from inference.conversations import services
from metering.audit import CONTROL

logger = logging.getLogger(__name__)


@app.task(name=TASK_FORGET_RESPONSES)  # type: ignore[untyped-decorator]
def forget_responses() -> None:
    days = settings.CONFIG.response_retention_days
    if days == 0:
        return
    try:
        num_forgotten = services.responses_forget(actor=CONTROL, older_than=timedelta(days=days))
    except DatabaseError as error:
        logger.warning("old responses not forgotten: %s", error)
        return
    if num_forgotten:
        logger.info("forgot %d responses older than %d days", num_forgotten, days)
