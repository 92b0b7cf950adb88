"""``/usage/accounts``, for operators: who spends most, who is refused, and what models cost beside
their price."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import redis
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_GET

from fleet import selectors as fleet_selectors
from fleet.catalogue import CatalogueEntry, CatalogueSettings
from fleet.live import reading as live
from fleet.live.refusals import read_refusals
from fleet.models import CatalogueModel
from helexa_site.web.pages import render_page
from metering import selectors
from metering.links import account_url, key_url, requests_url
from metering.money import cost_text, usd_text
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
    account_url: str
    """Empty: the callers are unknown."""
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
        "accounts": _sums_rows(accounts, "account", account_url),
        "keys": _sums_rows([row for row in keys if row.name], "key", key_url),
        "models": _model_costs(models),
        "refusals": refusals,
        "is_live": refusals is not None,
        "chart": chart_of(UsageGroup.ACCOUNT, accounts, period),
    }
    return render_page(request, "metering/accounts.html", title="Spending", context=context)


def _sums_rows(
    rows: list[UsageRow], parameter: str, address: Callable[[str], str]
) -> list[SumsRow]:
    shown = rows[:MAX_ROWS]
    names = selectors.names_of_keys(row.name for row in shown if parameter == "key")
    return [
        sums_row(
            f"{row.name} ({names[row.name]})" if row.name in names else row.name,
            row.sums,
            {parameter: row.name},
            address(row.name),
        )
        for row in shown
    ]


def _model_costs(rows: list[UsageRow]) -> list[ModelCost]:
    settings = {model.name: model.settings() for model in CatalogueModel.objects.all()}
    offered = fleet_selectors.catalogue_by_name()
    return [
        ModelCost(
            sums=sums_row(row.name, row.sums),
            price=_price(settings.get(row.name), offered.get(row.name)),
            per_million=_per_million(row),
        )
        for row in rows[:MAX_ROWS]
    ]


def _price(settings: CatalogueSettings | None, offered: CatalogueEntry | None) -> str:
    """``settings``: ``None`` where the model has been removed."""
    own = None if settings is None else settings.prices
    highest = own if offered is None else offered.highest_prices
    if highest is None:
        return "none"
    most = "" if highest == own else "up to "
    return f"{most}{usd_text(highest.input_micro_usd)} in, {usd_text(highest.output_micro_usd)} out"


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
            account_url=account_url(one.account) if one.account else "",
            code=one.code,
            requests=f"{number:,}",
            url=requests_url(account=one.account, code=one.code, since=f"{REFUSAL_HOURS}h"),
        )
        for one, number in most[:MAX_ROWS]
    ]
