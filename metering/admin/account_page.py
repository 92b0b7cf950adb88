"""What stands on an account's page above its settings: budgets, limits, keys, models, requests."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import redis
from django.db.models import F
from django.utils import timezone

from fleet.dashboard.links import model_url
from fleet.live import reading as live
from fleet.live.refusals import read_refusals
from helexa_site.web.moments import moment_text
from metering import selectors
from metering.keys.status import key_status
from metering.links import key_url
from metering.models import Account
from metering.money import cost_text
from metering.principal import LIMIT_FIELDS
from metering.requests.links import requests_url
from metering.requests.recent_errors import request_errors
from metering.requests.shown import request_rows
from metering.selectors import (
    RequestFilter,
    UsageFilter,
    UsageGroup,
    UsagePeriod,
    UsageSums,
)
from metering.usage.rows import SumsRow, budget_rows, sums_row

MAX_KEYS = 12
MAX_MODELS = 8
MAX_NEWEST = 8
REFUSAL_HOURS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRow:
    """``left``: of its budgets."""

    url: str
    prefix: str
    name: str
    status: str
    requests: str
    cost: str
    left: str
    last_used: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRow:
    name: str
    value: str
    """Empty: there is no such limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    code: str
    requests: str
    url: str


def page_of_account(account: Account) -> dict[str, Any]:
    """The context of ``metering/account_page.html``. Makes the same number of queries however much
    the account has."""
    now_unix_s = time.time()
    period = selectors.period_of(None, None, today=timezone.now().date())
    newest = selectors.requests_list(where=RequestFilter(account=account.name), limit=MAX_NEWEST)
    used = _sums_by_key(account.name, period)
    num_keys = account.keys.count()
    return {
        "account": account,
        "budgets": budget_rows(
            selectors.budgets_of(account=account.name, key="", now_unix_s=now_unix_s)
        ),
        "limits": limit_rows(account),
        "keys": _key_rows(account, used, now_unix_s),
        "num_more_keys": max(0, num_keys - MAX_KEYS),
        "models": _model_rows(account.name, period),
        "newest": request_rows(newest, selectors.key_names(newest), is_operator=True),
        "failures": request_errors(account=account.name),
        "refusals": _refusals(account.name),
        "requests_url": requests_url(account=account.name),
    }


def limit_rows(account: Account) -> list[LimitRow]:
    rows = []
    for name in LIMIT_FIELDS:
        value = getattr(account, name)
        label = str(Account._meta.get_field(name).verbose_name)  # type: ignore[union-attr]
        rows.append(LimitRow(name=label, value="" if value is None else f"{value:,}"))
    return rows


def _sums_by_key(account: str, period: UsagePeriod) -> dict[str, UsageSums]:
    rows = selectors.usage_list(
        by=UsageGroup.KEY, period=period, where=UsageFilter(accounts=frozenset({account}))
    )
    return {row.name: row.sums for row in rows}


def _key_rows(account: Account, used: Mapping[str, UsageSums], now_unix_s: float) -> list[KeyRow]:
    """Those used last come first, then those that never were; revoked ones come last."""
    keys = account.keys.order_by(
        F("revoked_at").asc(nulls_first=True),
        F("last_used_at").desc(nulls_last=True),
        "-created_at",
    )[:MAX_KEYS]
    prefixes = [key.prefix for key in keys]
    budgets = selectors.budgets_by_key(keys=prefixes, now_unix_s=now_unix_s)
    return [
        KeyRow(
            url=key_url(key.prefix),
            prefix=key.prefix,
            name=key.name,
            status=key_status(key),
            requests=f"{used.get(key.prefix, UsageSums()).requests:,}",
            cost=cost_text(used.get(key.prefix, UsageSums()).cost_micro_usd),
            left=selectors.left_words(budgets.get(key.prefix, ())),
            last_used=moment_text(key.last_used_at) or "never",
        )
        for key in keys
    ]


def _model_rows(account: str, period: UsagePeriod) -> list[SumsRow]:
    rows = selectors.usage_list(
        by=UsageGroup.MODEL, period=period, where=UsageFilter(accounts=frozenset({account}))
    )
    return [
        sums_row(
            row.name,
            row.sums,
            {"account": account, "model": row.name, "since": period.first},
            model_url(row.name),
        )
        for row in rows[:MAX_MODELS]
    ]


def _refusals(account: str) -> list[Refusal] | None:
    """The last day's by code, the most frequent first; ``None``: Redis does not answer."""
    try:
        found = read_refusals(live.redis_client(), hours=REFUSAL_HOURS)
    except (redis.RedisError, OSError):
        return None
    own = [(one.code, number) for one, number in found.items() if one.account == account]
    return [
        Refusal(
            code=code,
            requests=f"{number:,}",
            url=requests_url(account=account, code=code, since=f"{REFUSAL_HOURS}h"),
        )
        for code, number in sorted(own, key=lambda pair: (-pair[1], pair[0]))
    ]
