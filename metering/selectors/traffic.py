"""Requests and tokens of the last minutes, from the ledger's newest entries."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import Count, F, Sum
from django.db.models.functions import TruncMinute

from metering.models import LedgerEntry

TRAFFIC_MINUTES = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class MinuteSums:
    """Requests by when they ended; ``tokens`` are those of prompts and answers together."""

    at: datetime
    requests: int = 0
    tokens: int = 0


def traffic(*, now: datetime) -> tuple[MinuteSums, ...]:
    """Oldest first, a minute without requests among them; the last one is the present minute."""
    this_minute = now.astimezone(UTC).replace(second=0, microsecond=0)
    moments = [this_minute - timedelta(minutes=ago) for ago in range(TRAFFIC_MINUTES - 1, -1, -1)]
    rows: Any = LedgerEntry.objects.filter(at__gte=moments[0]).order_by()
    counted = rows.annotate(minute=TruncMinute("at", tzinfo=UTC)).values("minute")
    sums = counted.annotate(
        num=Count("id"), tokens=Sum(F("prompt_tokens") + F("completion_tokens"))
    )
    found = {row["minute"]: (row["num"], int(row["tokens"] or 0)) for row in sums}
    return tuple(
        MinuteSums(at=moment, requests=requests, tokens=tokens)
        for moment, (requests, tokens) in ((one, found.get(one, (0, 0))) for one in moments)
    )
