"""Budgets: on their own page, and below the account or key that they are on."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from fleet.admin.loading import actor_of
from fleet.admin.unfold_types import AnyForm, UnfoldAdmin, display, linked_column
from helexa_site.web.moments import moment_text
from metering import selectors, services
from metering.actor import Actor
from metering.admin.forms import BudgetForm, status_of
from metering.links import account_url, key_url, requests_url
from metering.models import Budget
from metering.money import amount_text, amount_words
from metering.services import Cap

if TYPE_CHECKING:
    TabularInline = admin.TabularInline[Any, Any]
else:
    from unfold.admin import TabularInline

STATUS_FIELDS = ("spent_now", "reserved_now", "left_now", "window_end", "requests")


def caps_left_words(budgets: Iterable[Budget]) -> str:
    """The amounts left of these budgets, in one cell."""
    return selectors.left_words(status_of(budget) for budget in budgets)


def requests_link(budget: Budget) -> SafeString:
    owner = {"key": budget.key_id} if budget.key_id else {"account": budget.account_id}
    return format_html('<a href="{}">Requests</a>', requests_url(**owner))


class BudgetStatusColumns:
    """How budgets stand now: a window that is over counts as begun again."""

    @display(description="Cap", ordering="cap")
    def cap_now(self, budget: Budget) -> str:
        return amount_words(budget.unit, budget.cap)

    @display(description="Spent")
    def spent_now(self, budget: Budget) -> str:
        return "" if budget.pk is None else amount_text(budget.unit, status_of(budget).spent)

    @display(description="Reserved")
    def reserved_now(self, budget: Budget) -> str:
        return "" if budget.pk is None else amount_text(budget.unit, budget.reserved)

    @display(description="Left")
    def left_now(self, budget: Budget) -> str:
        return "" if budget.pk is None else amount_text(budget.unit, status_of(budget).left)

    @display(description="Requests")
    def requests(self, budget: Budget) -> str:
        """Those that it has to allow."""
        return "" if budget.pk is None else requests_link(budget)

    @display(description="Window ends")
    def window_end(self, budget: Budget) -> str:
        ends_s = None if budget.pk is None else status_of(budget).window_ends_unix_s
        if ends_s is None:
            return "with its first request" if budget.window == "seconds" else ""
        return moment_text(datetime.fromtimestamp(ends_s, UTC))


class BudgetInline(BudgetStatusColumns, TabularInline):
    model = Budget
    form = BudgetForm
    extra = 0
    fields = ("unit", "amount", "window", "window_s", *STATUS_FIELDS)
    readonly_fields = STATUS_FIELDS


@admin.register(Budget)
class BudgetAdmin(BudgetStatusColumns, UnfoldAdmin):
    form = BudgetForm
    list_display = ("cap_now", "account_link", "key_link", "window", *STATUS_FIELDS)
    list_select_related = ("account", "key")
    list_filter = ("unit", "window")
    search_fields = ("account__name", "key__prefix", "key__name")
    autocomplete_fields = ("account", "key")
    fields = ("account", "key", "unit", "amount", "window", "window_s", *STATUS_FIELDS)

    account_link = linked_column("account_id", account_url, "Account")
    key_link = linked_column("key_id", key_url, "Key")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return STATUS_FIELDS if obj is None else ("account", "key", *STATUS_FIELDS)

    def save_model(self, request: HttpRequest, obj: Any, form: AnyForm, change: bool) -> None:
        budget_save(actor_of(request), obj, form)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        services.budget_remove(actor=actor_of(request), budget=obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        for budget in queryset:
            services.budget_remove(actor=actor_of(request), budget=budget)


def budget_save(actor: Actor, budget: Budget, form: Any) -> None:
    """``form`` is a ``BudgetForm`` whose row is ``budget``."""
    if not budget._state.adding:
        services.budget_update(actor=actor, budget=budget, changed_fields=form.changed_columns)
        return
    cap = Cap(unit=budget.unit, cap=budget.cap, window=budget.window, window_s=budget.window_s)
    made = services.budget_create(actor=actor, cap=cap, account=budget.account, key=budget.key)
    budget.pk = made.pk


def budgets_save(actor: Actor, formset: Any) -> None:
    """Saves the budgets of an inline."""
    formset.save(commit=False)
    for budget in formset.deleted_objects:
        services.budget_remove(actor=actor, budget=budget)
    for form in formset.forms:
        if form.has_changed() and form not in formset.deleted_forms:
            budget_save(actor, form.instance, form)
