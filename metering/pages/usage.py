"""``/usage/``: amounts left, tokens and cost. For operators: ``/usage/accounts``, the largest
spenders, refusals and models' costs, and ``/usage/audit``."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_GET

from fleet import selectors as fleet_selectors
from fleet.dashboard.links import model_url
from fleet.models import CatalogueModel
from helexa_site.pages import render_page
from metering import selectors
from metering.audit import CHANGED_FIELDS
from metering.errors import MeteringValueError
from metering.models import Account, AuditEntry
from metering.money import cost_text
from metering.output import csv_response
from metering.pages import Reader, account_url, audited_url, for_members, for_operators, key_url
from metering.selectors import UsageFilter, UsageGroup, UsagePeriod, UsageRow
from metering.usage_rows import (
    SumsRow,
    budget_rows,
    chart_of,
    price_text,
    refusal_rows,
    sums_row,
    usage_csv,
)

MAX_DAYS = 400
MAX_ROWS = 20


@for_members
@require_GET
def usage_page(request: HttpRequest, reader: Reader) -> HttpResponse:
    problem = ""
    try:
        period = _period(request)
    except MeteringValueError as error:
        problem, period = str(error), _default_period()
    groups, accounts = _groups(reader), _choosable(reader)
    by = next((one for one in groups if one.value == request.GET.get("by")), UsageGroup.DAY)
    account = request.GET.get("account", "")
    account = account if account in accounts else ""
    visible = None if reader.is_operator else reader.accounts
    where = UsageFilter(accounts=frozenset({account}) if account else visible)
    rows = selectors.usage_list(by=by, period=period, where=where)
    if request.GET.get("format") == "csv":
        return csv_response(f"usage-by-{by.value}", usage_csv(by, rows))
    key_names = selectors.names_of_keys(row.name for row in rows if by is UsageGroup.KEY)
    chosen = {"by": by.value, "from": period.first, "to": period.last, "account": account}
    context: dict[str, Any] = {
        "reader": reader,
        "problem": problem,
        "by": by.value,
        "groups": [group.value for group in groups],
        "period": period,
        "account": account,
        "accounts": accounts,
        "total": sums_row("", selectors.usage_total(period=period, where=where)),
        "rows": [
            sums_row(
                _words(row.name, key_names),
                row.sums,
                _where(row, by, period, account),
                _home(row.name, by) if reader.is_operator else "",
            )
            for row in rows
        ],
        "chart": chart_of(by, rows, period),
        "budgets": budget_rows(_budgets(reader)),
        "csv_url": f"?{urlencode({**chosen, 'format': 'csv'})}",
    }
    return render_page(request, "metering/usage.html", title="Usage", context=context)


def _where(
    row: UsageRow, by: UsageGroup, period: UsagePeriod, account: str | None
) -> dict[str, object]:
    first, last, words = period.first, period.last, {"account": account}
    if by is UsageGroup.DAY:
        first = last = date.fromisoformat(row.name)
    else:
        words[by.value] = row.name
    return {**words, "since": first, "until": last + timedelta(days=1)}


def _words(name: str, key_names: Mapping[str, str]) -> str:
    return f"{name} ({key_names[name]})" if name in key_names else name or "without a key"


def _home(name: str, by: UsageGroup) -> str:
    pages = {UsageGroup.MODEL: model_url, UsageGroup.KEY: key_url, UsageGroup.ACCOUNT: account_url}
    return pages[by](name) if name and by in pages else ""


def _budgets(reader: Reader) -> list[selectors.BudgetStatus]:
    now_unix_s = time.time()
    found = []
    for name in sorted(reader.roles):
        found += selectors.budgets_of(account=name, key="", now_unix_s=now_unix_s)
    keys = [key.prefix for key in reader.own_keys() if key.revoked_at is None]
    return found + selectors.key_budgets(keys=keys, now_unix_s=now_unix_s)


def _period(request: HttpRequest) -> UsagePeriod:
    first, last = request.GET.get("from"), request.GET.get("to")
    period = selectors.period_of(first or None, last or None, today=timezone.now().date())
    if (period.last - period.first).days >= MAX_DAYS:
        raise MeteringValueError("from", f"A page shows at most {MAX_DAYS} days")
    return period


def _default_period() -> UsagePeriod:
    return selectors.period_of(None, None, today=timezone.now().date())


def _groups(reader: Reader) -> list[UsageGroup]:
    groups = [UsageGroup.DAY, UsageGroup.MODEL, UsageGroup.KEY]
    sees_several = reader.is_operator or len(reader.roles) > 1
    return [*groups, UsageGroup.ACCOUNT] if sees_several else groups


def _choosable(reader: Reader) -> list[str]:
    if reader.is_operator:
        return list(Account.objects.values_list("name", flat=True))
    return sorted(reader.roles)


@for_operators
@require_GET
def accounts_page(request: HttpRequest, _reader: Reader) -> HttpResponse:
    period, where = _default_period(), UsageFilter()
    accounts = selectors.usage_list(by=UsageGroup.ACCOUNT, period=period, where=where)
    keys = selectors.usage_list(by=UsageGroup.KEY, period=period, where=where)
    models = selectors.usage_list(by=UsageGroup.MODEL, period=period, where=where)
    refusals = refusal_rows()
    context = {
        "period": period,
        "accounts": _sums_rows(accounts, "account", account_url),
        "keys": _sums_rows([row for row in keys if row.name], "key", key_url),
        "models": _model_costs(models),
        "refusals": None if refusals is None else refusals[:MAX_ROWS],
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
        sums_row(_words(row.name, names), row.sums, {parameter: row.name}, address(row.name))
        for row in shown
    ]


def _model_costs(rows: list[UsageRow]) -> list[dict[str, Any]]:
    settings = {model.name: model.settings() for model in CatalogueModel.objects.all()}
    offered = fleet_selectors.catalogue_by_name()
    return [
        {
            "sums": sums_row(row.name, row.sums),
            "price": price_text(settings.get(row.name), offered.get(row.name)),
            "per_million": _per_million(row),
        }
        for row in rows[:MAX_ROWS]
    ]


def _per_million(row: UsageRow) -> str:
    tokens = row.sums.prompt_tokens + row.sums.completion_tokens
    return cost_text(row.sums.cost_micro_usd * 1_000_000 // tokens) if tokens else ""


PER_PAGE = 50


class AuditFilter(forms.Form):
    actor = forms.CharField(required=False, max_length=200)
    action = forms.CharField(required=False, max_length=64)
    object_id = forms.CharField(required=False, max_length=200, label="Object")
    first = forms.DateField(
        required=False, label="From", widget=forms.DateInput(attrs={"type": "date"})
    )
    last = forms.DateField(
        required=False, label="To", widget=forms.DateInput(attrs={"type": "date"})
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for field in self.fields.values():
            field.widget.attrs["class"] = "hx-input"


@for_operators
@require_GET
def audit_page(request: HttpRequest, _reader: Reader) -> HttpResponse:
    if not request.user.has_perm("metering.view_auditentry"):
        raise PermissionDenied
    form = AuditFilter(request.GET)
    entries = AuditEntry.objects.all()
    if form.is_valid():
        entries = entries.filter(**_conditions(form.cleaned_data))
    page = Paginator(entries, PER_PAGE).get_page(request.GET.get("page"))
    chosen = {name: value for name, value in request.GET.items() if value and name != "page"}
    context = {
        "form": form,
        "page": page,
        "rows": [
            (entry, audited_url(entry.action, entry.object_id), _detail(entry)) for entry in page
        ],
        "query": urlencode(chosen),
    }
    return render_page(request, "metering/audit.html", title="Audit", context=context)


def _conditions(given: dict[str, Any]) -> dict[str, Any]:
    words = {
        f"{name}__icontains": given[name]
        for name in ("actor", "action", "object_id")
        if given[name]
    }
    if given["first"]:
        words["at__gte"] = selectors.midnight(given["first"])
    if given["last"]:
        words["at__lt"] = selectors.midnight(given["last"]) + timedelta(days=1)
    return words


def _detail(entry: AuditEntry) -> str:
    parts = []
    for name, value in entry.detail.items():
        is_change = _is_change(entry, name, value)
        words = [word if isinstance(word, str) else json.dumps(word) for word in _list(value)]
        parts.append(f"{name}: {' → '.join(words) if is_change else ', '.join(words)}")
    return "; ".join(parts)


def _is_change(entry: AuditEntry, name: str, value: Any) -> bool:
    """Other lists of two are values themselves."""
    is_update = entry.action.endswith(".update") and name != CHANGED_FIELDS
    return is_update and isinstance(value, list) and len(value) == 2


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
