"""Usage, budgets and refusals for pages: amounts as text, and numbers for charts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

import redis

from fleet.catalogue import CatalogueEntry, CatalogueSettings
from fleet.live import reading as live
from fleet.live.reading import read_refusals
from helexa_site.templatetags.filters import moment_text
from metering.money import MICRO_USD_PER_USD, amount_words, cost_text, usd_text
from metering.output import csv_text
from metering.pages import account_url, requests_url
from metering.selectors import (
    SUMS,
    BudgetStatus,
    UsageGroup,
    UsagePeriod,
    UsageRow,
    UsageSums,
)

MAX_CHARTED = 12
REFUSAL_HOURS = 24
Chart = dict[str, list[str] | list[int] | list[float]]


SumsRow = dict[str, str]
"""``url``: empty for a total. ``failed_url``: empty for a total, or without failed requests."""


def sums_row(
    name: str, sums: UsageSums, where: Mapping[str, object] | None = None, url: str = ""
) -> SumsRow:
    """``where``: the filters of its requests, which are linked where ``url`` is empty."""
    has_failed = where is not None and sums.failed_requests > 0
    return {
        "name": name,
        "url": url or (requests_url(**where) if where is not None else ""),
        "requests": f"{sums.requests:,}",
        "failed": f"{sums.failed_requests:,}",
        "failed_url": requests_url(**(where or {}), outcome="failed") if has_failed else "",
        "prompt_tokens": f"{sums.prompt_tokens:,}",
        "cached_tokens": f"{sums.cached_tokens:,}",
        "completion_tokens": f"{sums.completion_tokens:,}",
        "cost": cost_text(sums.cost_micro_usd),
    }


def price_text(settings: CatalogueSettings | None, offered: CatalogueEntry | None) -> str:
    own = None if settings is None else settings.prices
    highest = own if offered is None else offered.highest_prices
    if highest is None:
        return "none"
    most = "" if highest == own else "up to "
    return f"{most}{usd_text(highest.input_micro_usd)} in, {usd_text(highest.output_micro_usd)} out"


def chart_of(by: UsageGroup, rows: Sequence[UsageRow], period: UsagePeriod) -> Chart:
    shown = {row.name: row.sums for row in rows}
    if by is UsageGroup.DAY:
        num_days = (period.last - period.first).days + 1
        names = [str(period.first + timedelta(days=day)) for day in range(num_days)]
    else:
        names = list(shown)[:MAX_CHARTED]
    sums = [shown.get(name, UsageSums()) for name in names]
    return {
        "labels": [name or "without a key" for name in names],
        "USD": [one.cost_micro_usd / MICRO_USD_PER_USD for one in sums],
        "tokens": [one.prompt_tokens + one.completion_tokens for one in sums],
    }


def budget_rows(budgets: Iterable[BudgetStatus]) -> list[dict[str, Any]]:
    return [
        {
            "owner": f"{budget.on} {budget.owner}",
            "url": requests_url(**{budget.on: budget.owner}),
            **{
                name: amount_words(budget.unit, getattr(budget, name))
                for name in ("cap", "spent", "reserved", "left")
            },
            "left_percent": 100 * budget.left // budget.cap,
            "window": _window(budget),
        }
        for budget in budgets
    ]


def _window(budget: BudgetStatus) -> str:
    if budget.window == "balance":
        return "does not come back by itself"
    if budget.window_ends_unix_s is None:
        return f"{budget.window_s:,} s from the next request"
    ends = datetime.fromtimestamp(budget.window_ends_unix_s, UTC)
    return f"begins anew {moment_text(ends)}"


def usage_fields(
    by: UsageGroup, period: UsagePeriod, rows: Iterable[UsageRow], total: UsageSums
) -> dict[str, Any]:
    return {
        "by": by.value,
        "from": str(period.first),
        "to": str(period.last),
        "data": [{by.value: row.name} | asdict(row.sums) for row in rows],
        "total": asdict(total),
    }


def usage_csv(by: UsageGroup, rows: Iterable[UsageRow]) -> str:
    return csv_text((by.value, *SUMS), ((row.name, *asdict(row.sums).values()) for row in rows))


def refusal_rows(account: str | None = None) -> list[dict[str, str]] | None:
    """The most frequent first; ``None``: Redis does not answer."""
    try:
        found = read_refusals(live.redis_client(), hours=REFUSAL_HOURS)
    except (redis.RedisError, OSError):
        return None
    most = sorted(found.items(), key=lambda item: (-item[1], item[0].account, item[0].code))
    return [
        {
            "account": one.account or "unknown callers",
            "account_url": account_url(one.account) if one.account else "",
            "code": one.code,
            "requests": f"{number:,}",
            "url": requests_url(account=one.account, code=one.code, since=f"{REFUSAL_HOURS}h"),
        }
        for one, number in most
        if account in (None, one.account)
    ]
