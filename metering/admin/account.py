"""Accounts: lists, and pages with their people and budgets."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from django.contrib import admin
from django.db.models import Count, F, QuerySet
from django.http import HttpRequest
from django.utils import timezone

from fleet.admin.loading import actor_of
from fleet.admin.unfold_types import AnyForm, CheckedForm, HomePageAdmin, display
from fleet.dashboard.links import model_url
from helexa_site.web.moments import moment_text
from metering import selectors, services
from metering.actor import Actor
from metering.admin.budget import BudgetInline, TabularInline, budgets_save, caps_left_words
from metering.keys.store import key_status
from metering.links import key_url, requests_url
from metering.models import Account, Budget, Membership
from metering.money import cost_text
from metering.principal import BUILT_IN_ACCOUNTS, LIMIT_FIELDS
from metering.requests.filters import RequestFilter, requests_list
from metering.requests.shown import Detail, request_errors, request_rows
from metering.selectors import (
    UsageFilter,
    UsageGroup,
    UsagePeriod,
    UsageSums,
)
from metering.usage.rows import SumsRow, budget_rows, refusal_rows, sums_row


class AccountForm(CheckedForm):
    class Meta:
        model = Account
        fields = "__all__"

    def check_row(self) -> None:
        services.account_check(account=self.instance)


class MembershipInline(TabularInline):
    model = Membership
    extra = 0
    fields = ("user", "role")
    verbose_name_plural = "people"


@admin.register(Account)
class AccountAdmin(HomePageAdmin):
    form = AccountForm
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
    fieldsets = (
        (None, {"fields": ("name", "description", "enabled", "weight")}),
        ("Limits", {"fields": LIMIT_FIELDS}),
        ("Requests", {"fields": ("capture_until",)}),
    )
    inlines = (MembershipInline, BudgetInline)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        counts = {
            "keys_count": Count("keys", distinct=True),
            "people_count": Count("memberships", distinct=True),
        }
        rows: QuerySet[Any] = super().get_queryset(request).annotate(**counts)
        return rows.prefetch_related("budgets")

    def home_context(self, obj: Account) -> dict[str, Any]:
        return page_of_account(obj)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """The name is fixed: the ledger refers to it."""
        return ("name",) if obj is not None else ()

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """One at a time, and only where nothing refers to it; others can be disabled."""
        if obj is not None and (obj.name in BUILT_IN_ACCOUNTS or obj.keys.exists()):
            return False
        return super().has_delete_permission(request, obj)

    def get_actions(self, request: HttpRequest) -> Any:
        actions = super().get_actions(request)
        actions.pop("delete_selected", None)
        return actions

    def save_model(self, request: HttpRequest, obj: Any, form: AnyForm, change: bool) -> None:
        if change:
            services.account_update(
                actor=actor_of(request), account=obj, changed_fields=form.changed_data
            )
            return
        obj.created_at = services.account_create(
            actor=actor_of(request), **form.cleaned_data
        ).created_at

    def save_formset(self, request: HttpRequest, form: AnyForm, formset: Any, change: bool) -> None:
        if formset.model is Budget:
            budgets_save(actor_of(request), formset)
        else:
            memberships_save(actor_of(request), formset)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        services.account_delete(actor=actor_of(request), account=obj)

    @display(description="Left of its caps")
    def caps_left(self, account: Account) -> str:
        return caps_left_words(account.budgets.all())

    @display(description="Keys", ordering="keys_count")
    def num_keys(self, account: Any) -> int:
        return int(account.keys_count)

    @display(description="People", ordering="people_count")
    def num_people(self, account: Any) -> int:
        return int(account.people_count)


def memberships_save(actor: Actor, formset: Any) -> None:
    """A row whose person was changed is one removal and one addition."""
    formset.save(commit=False)
    for membership in formset.deleted_objects:
        services.membership_remove(actor=actor, membership=membership)
    for membership, changed in formset.changed_objects:
        if "user" in changed:
            before = Membership.objects.get(pk=membership.pk)
            services.membership_remove(actor=actor, membership=before)
    for membership in [*(row for row, _ in formset.changed_objects), *formset.new_objects]:
        services.membership_set(
            actor=actor,
            account=membership.account,
            user=membership.user,
            role=membership.role,
        )


MAX_KEYS = 12
MAX_MODELS = 8
MAX_NEWEST = 8


def page_of_account(account: Account) -> dict[str, Any]:
    """The context of ``metering/account_page.html``. Makes the same number of queries however much
    the account has."""
    now_unix_s = time.time()
    period = selectors.period_of(None, None, today=timezone.now().date())
    newest = requests_list(where=RequestFilter(account=account.name), limit=MAX_NEWEST)
    used = _sums_by_key(account.name, period)
    num_keys = account.keys.count()
    return {
        "account": account,
        "budgets": budget_rows(
            selectors.budgets_of(account=account.name, key="", now_unix_s=now_unix_s)
        ),
        "people": account.memberships.select_related("user").order_by("user__username"),
        "limits": _limits(account),
        "keys": _key_rows(account, used, now_unix_s),
        "num_more_keys": max(0, num_keys - MAX_KEYS),
        "models": _model_rows(account.name, period),
        "newest": request_rows(newest, is_operator=True),
        "failures": request_errors(account=account.name),
        "refusals": refusal_rows(account.name),
        "requests_url": requests_url(account=account.name),
    }


def _limits(account: Account) -> list[Detail]:
    return [
        Detail(
            name=str(Account._meta.get_field(name).verbose_name),  # type: ignore[union-attr]
            value="" if (value := getattr(account, name)) is None else f"{value:,}",
        )
        for name in LIMIT_FIELDS
    ]


def _sums_by_key(account: str, period: UsagePeriod) -> dict[str, UsageSums]:
    rows = selectors.usage_list(
        by=UsageGroup.KEY, period=period, where=UsageFilter(accounts=frozenset({account}))
    )
    return {row.name: row.sums for row in rows}


def _key_rows(
    account: Account, used: Mapping[str, UsageSums], now_unix_s: float
) -> list[dict[str, str]]:
    """The last used first, then unused ones; revoked ones come last."""
    keys = account.keys.order_by(
        F("revoked_at").asc(nulls_first=True),
        F("last_used_at").desc(nulls_last=True),
        "-created_at",
    )[:MAX_KEYS]
    prefixes = [key.prefix for key in keys]
    budgets = selectors.budgets_by_key(keys=prefixes, now_unix_s=now_unix_s)
    return [
        {
            "url": key_url(key.prefix),
            "prefix": key.prefix,
            "name": key.name,
            "status": key_status(key),
            "requests": f"{used.get(key.prefix, UsageSums()).requests:,}",
            "cost": cost_text(used.get(key.prefix, UsageSums()).cost_micro_usd),
            "left": selectors.left_words(budgets.get(key.prefix, ())),
            "last_used": moment_text(key.last_used_at) or "never",
        }
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
