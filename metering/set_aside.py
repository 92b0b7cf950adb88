"""Usage reports that cannot be settled, kept as rows for people. Bounded for each neuron."""

from __future__ import annotations

import logging

from django.db.models import F

from inference.quotas import quota_locked
from metering.models import SetAsideReport
from metering.receipts import Receipt

logger = logging.getLogger(__name__)

MAX_SET_ASIDE_PER_NEURON = 100
"""Rows kept for people to read; what comes after them is counted in the last one."""


def report_set_aside(neuron: str, reason: str, using: str, receipt: Receipt | None = None) -> None:
    """Keeps a row for people, or counts the report in the last row where there are enough.
    ``receipt``: where it is genuine."""
    reason = reason[:500]
    with quota_locked("set aside", neuron, using):
        rows = SetAsideReport.objects.using(using).filter(neuron=neuron)
        if rows.count() >= MAX_SET_ASIDE_PER_NEURON:
            last = rows.order_by("-id")[:1].values("id")
            rows.filter(id__in=last).update(num_more=F("num_more") + 1)
            return
        SetAsideReport.objects.using(using).create(
            neuron=neuron,
            reason=reason,
            request_id="" if receipt is None else receipt.request_id,
            account="" if receipt is None else receipt.account,
        )
    logger.warning("a usage report of neuron %s is set aside: %s", neuron, reason)
