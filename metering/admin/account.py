"""Accounts: lists, and pages with their people and budgets."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from django.contrib import admin
from django.db.models import Count, F, QuerySet
from django.http import HttpRequest
from django.utils import timezone

from fleet.admin import unfold_types as ui
from fleet.dashboard.links import model_url
from metering import selectors, services
from metering.admin.inlines import BudgetInline, MembershipInline, caps_left, save_inline
from metering.links import requests_url
from metering.models import Account, ApiKey
from metering.pages.requests import request_errors, request_rows
from metering.principal import BUILT_IN_ACCOUNTS, LIMIT_FIELDS
from metering.request_filters import RequestFilter, requests_list
from metering.selectors import UsageFilter, UsageGroup, UsageSums, key_status
from metering.usage_rows import SumsRow, budget_rows, refusal_rows, sums_row

MAX_KEYS = 12
MAX_MODELS = 8
MAX_NEWEST = 8


@admin.register(Account)
class AccountAdmin(ui.WrittenAdmin):
    form = ui.checked_form(lambda account: services.account_check(account=account))
    writes = ui.Writes(
        "account", services.account_create, services.account_update, services.account_delete
    )
    fixed = ("name",)
    change_form_outer_before_template = "metering/account_page.html"
    list_display = (
        "name",
        "description",
        "enabled",
        "weight",
        "num_keys",
        "num_people",
        "caps_left",
    )
    list_filter = ("enabled",)
    search_fields = ("name", "description")
    fieldsets = ui.sections(
        {
            "": ("name", "description", "enabled", "weight"),
            "Limits": LIMIT_FIELDS,
            "Requests": ("capture_until",),
        }
    )
    inlines = (MembershipInline, BudgetInline)

    num_keys = ui.column("Keys", lambda account: account.keys_count, ordering="keys_count")
    num_people = ui.column("People", lambda account: account.people_count, ordering="people_count")
    caps_left = ui.column("Left of its caps", caps_left)
    save_formset = save_inline

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        counts = {
            "keys_count": Count("keys", distinct=True),
            "people_count": Count("memberships", distinct=True),
        }
        rows: QuerySet[Any] = super().get_queryset(request).annotate(**counts)
        return rows.prefetch_related("budgets")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """One at a time, and only where nothing refers to it; others can be disabled."""
        is_free = obj is not None and obj.name not in BUILT_IN_ACCOUNTS and not obj.keys.exists()
        return is_free and super().has_delete_permission(request, obj)

    def home_context(self, obj: Account) -> dict[str, Any]:
        """Makes the same number of queries however much the account has."""
        now_unix_s = time.time()
        period = selectors.period_of(None, None, today=timezone.now().date())
        where = UsageFilter(accounts=frozenset({obj.name}))
        by_key = selectors.usage_list(by=UsageGroup.KEY, period=period, where=where)
        by_model = selectors.usage_list(by=UsageGroup.MODEL, period=period, where=where)
        budgets = selectors.budgets_of(account=obj.name, key="", now_unix_s=now_unix_s)
        newest = requests_list(where=RequestFilter(account=obj.name), limit=MAX_NEWEST)
        requests_of = {"account": obj.name, "since": period.first}
        return {
            "account": obj,
            "budgets": budget_rows(budgets),
            "people": obj.memberships.select_related("user").order_by("user__username"),
            "keys": _key_rows(obj, {row.name: row.sums for row in by_key}, now_unix_s),
            "num_more_keys": max(0, obj.keys.count() - MAX_KEYS),
            "models": [
                sums_row(row.name, row.sums, requests_of | {"model": row.name}, model_url(row.name))
                for row in by_model[:MAX_MODELS]
            ],
            "newest": request_rows(newest, is_operator=True),
            "failures": request_errors(account=obj.name),
            "refusals": refusal_rows(obj.name),
            "requests_url": requests_url(account=obj.name),
        }


def _key_rows(
    account: Account, used: Mapping[str, UsageSums], now_unix_s: float
) -> list[tuple[ApiKey, str, SumsRow, str]]:
    """Each key with its status, its use and what is left of its budgets. The last used first, then
    unused ones; revoked ones come last."""
    keys = account.keys.order_by(
        F("revoked_at").asc(nulls_first=True),
        F("last_used_at").desc(nulls_last=True),
        "-created_at",
    )[:MAX_KEYS]
    budgets = selectors.budgets_by_key(keys=[key.prefix for key in keys], now_unix_s=now_unix_s)
    return [
        (
            key,
            key_status(key),
            sums_row(key.name, used.get(key.prefix, UsageSums())),
            selectors.left_words(budgets.get(key.prefix, ())),
        )
        for key in keys
    ]
