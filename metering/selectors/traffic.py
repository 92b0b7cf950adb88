"""Requests and tokens of the last minutes, from the ledger's newest entries."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import Count
from django.db.models.functions import TruncMinute

from metering.models import LedgerEntry
from metering.selectors.usage import exact_sum, exact_sums

TRAFFIC_MINUTES = 30
TOKENS = ("prompt_tokens", "completion_tokens")


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
    sums = counted.annotate(num=Count("id"), **exact_sums(TOKENS))
    found = {
        row["minute"]: (row["num"], sum(exact_sum(row, column) for column in TOKENS))
        for row in sums
    }
    return tuple(
        MinuteSums(at=moment, requests=requests, tokens=tokens)
        for moment, (requests, tokens) in ((one, found.get(one, (0, 0))) for one in moments)
    )
