"""``/usage/accounts``, for operators: who spends most, who is refused, and what models cost beside
their price."""

from __future__ import annotations

from dataclasses import dataclass

import redis
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_GET

from fleet.live import reading as live
from fleet.live.refusals import read_refusals
from fleet.models import CatalogueModel
from helexa_site.pages import render_page
from metering import selectors
from metering.money import cost_text, usd_text
from metering.prices import Prices
from metering.requests.links import requests_url
from metering.selectors import UsageFilter, UsageGroup, UsageRow
from metering.usage.reader import Reader, for_operators
from metering.usage.rows import SumsRow, chart_of, sums_row

MAX_ROWS = 20
REFUSAL_HOURS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCost:
    sums: SumsRow
    price: str
    per_million: str
    """What a million of its tokens came to, prompts and answers as they were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    account: str
    code: str
    requests: str
    url: str


@for_operators
@require_GET
def accounts_page(request: HttpRequest, _reader: Reader) -> HttpResponse:
    period = selectors.period_of(None, None, today=timezone.now().date())
    where = UsageFilter()
    accounts = selectors.usage_list(by=UsageGroup.ACCOUNT, period=period, where=where)
    keys = selectors.usage_list(by=UsageGroup.KEY, period=period, where=where)
    models = selectors.usage_list(by=UsageGroup.MODEL, period=period, where=where)
    refusals = _refusals()
    context = {
        "period": period,
        "accounts": _sums_rows(accounts, "account"),
        "keys": _sums_rows([row for row in keys if row.name], "key"),
        "models": _model_costs(models),
        "refusals": refusals,
        "is_live": refusals is not None,
        "chart": chart_of(UsageGroup.ACCOUNT, accounts, period),
    }
    return render_page(request, "metering/accounts.html", title="Accounts", context=context)


def _sums_rows(rows: list[UsageRow], parameter: str) -> list[SumsRow]:
    return [sums_row(row.name, row.sums, {parameter: row.name}) for row in rows[:MAX_ROWS]]


def _model_costs(rows: list[UsageRow]) -> list[ModelCost]:
    prices = {model.name: model.settings().prices for model in CatalogueModel.objects.all()}
    return [
        ModelCost(
            sums=sums_row(row.name, row.sums),
            price=_price(prices.get(row.name)),
            per_million=_per_million(row),
        )
        for row in rows[:MAX_ROWS]
    ]


def _price(prices: Prices | None) -> str:
    if prices is None:
        return "none"
    return f"{usd_text(prices.input_micro_usd)} in, {usd_text(prices.output_micro_usd)} out"


def _per_million(row: UsageRow) -> str:
    tokens = row.sums.prompt_tokens + row.sums.completion_tokens
    return cost_text(row.sums.cost_micro_usd * 1_000_000 // tokens) if tokens else ""


def _refusals() -> list[Refusal] | None:
    """The last day's refusals, the most frequent first; ``None``: Redis does not answer."""
    try:
        found = read_refusals(live.redis_client(), hours=REFUSAL_HOURS)
    except (redis.RedisError, OSError):
        return None
    most = sorted(found.items(), key=lambda item: (-item[1], item[0].account, item[0].code))
    return [
        Refusal(
            account=one.account or "unknown callers",
            code=one.code,
            requests=f"{number:,}",
            url=requests_url(account=one.account, code=one.code, since=f"{REFUSAL_HOURS}h"),
        )
        for one, number in most[:MAX_ROWS]
    ]
