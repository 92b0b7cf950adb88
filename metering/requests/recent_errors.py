"""The errors of the last day, as the pages of models, replicas and accounts list them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from metering.ledger.entries import ERRORS
from metering.models import RequestRecord

ERRORS_FOR = timedelta(days=1)
MAX_ERRORS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentError:
    at: datetime
    what: str
    message: str
    request_id: str = ""


def request_errors(**where: Any) -> list[RecentError]:
    """Refused and failed requests, newest first. ``where``: columns of request records."""
    since = timezone.now() - ERRORS_FOR
    records = RequestRecord.objects.filter(
        at__gte=since, code__isnull=False, outcome__in=ERRORS, **where
    )
    return [
        RecentError(
            at=one.at,
            what=f"a request ({one.endpoint})",
            message=f"{one.code}: {one.message}" if one.message else str(one.code),
            request_id=one.request_id.hex,
        )
        for one in records.order_by("-at")[:MAX_ERRORS]
    ]
