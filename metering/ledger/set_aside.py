"""Usage reports that cannot be settled, kept as rows for people. Bounded for each neuron."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import F

from inference.quotas import quota_locked
from metering.ledger.receipts import Receipt
from metering.models import SetAsideReport

logger = logging.getLogger(__name__)

MAX_SET_ASIDE_PER_NEURON = 100
"""Rows kept for people to read; what comes after them is counted in the last one."""
MAX_REASON_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class UnfitReport:
    reason: str
    receipt: Receipt | None = None
    """Its receipt, where that is genuine."""


def reports_set_aside(neuron: str, reports: Sequence[UnfitReport], using: str) -> None:
    """Keeps a row of each for people, or counts it in the last row where there are enough. One
    transaction for all: each has SQLite's writers wait."""
    if not reports:
        return
    with quota_locked("set aside", neuron, using):
        rows = SetAsideReport.objects.using(using).filter(neuron=neuron)
        room = max(0, MAX_SET_ASIDE_PER_NEURON - rows.count())
        kept, num_more = reports[:room], len(reports) - len(reports[:room])
        rows.bulk_create(_row(neuron, report) for report in kept)
        if num_more:
            last = rows.order_by("-id")[:1].values("id")
            rows.filter(id__in=last).update(num_more=F("num_more") + num_more)
    for report in kept:
        reason = report.reason[:MAX_REASON_CHARACTERS]
        logger.warning("a usage report of neuron %s is set aside: %s", neuron, reason)


def _row(neuron: str, report: UnfitReport) -> SetAsideReport:
    receipt = report.receipt
    return SetAsideReport(
        neuron=neuron,
        reason=report.reason[:MAX_REASON_CHARACTERS],
        request_id="" if receipt is None else receipt.request_id,
        account="" if receipt is None else receipt.account,
    )
