"""Budgets: on their own page, and below their account or key."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.widgets import UnfoldAdminTextInputWidget

from fleet.admin.loading import actor_of
from fleet.admin.unfold_types import AnyForm, CheckedForm, UnfoldAdmin, display, linked_column
from helexa_site.web.moments import moment_text
from metering import selectors, services
from metering.actor import Actor
from metering.errors import MeteringValueError
from metering.links import account_url, key_url, requests_url
from metering.models import Budget
from metering.money import amount_text, amount_words, cap_of
from metering.selectors import BudgetStatus, budget_status
from metering.services import Cap

if TYPE_CHECKING:
    TabularInline = admin.TabularInline[Any, Any]
else:
    from unfold.admin import TabularInline

STATUS_FIELDS = ("spent_now", "reserved_now", "left_now", "window_end", "requests")


class BudgetForm(CheckedForm):
    """``amount`` is the cap for people: whole tokens, or dollars."""

    amount = forms.CharField(
        label="Cap",
        widget=UnfoldAdminTextInputWidget,
        help_text="Tokens, as in 1000000, or US dollars, as in 12.50.",
    )

    class Meta:
        model = Budget
        fields = ("account", "key", "unit", "window", "window_s")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk is not None:
            self.initial["amount"] = amount_text(self.instance.unit, self.instance.cap)
            if "unit" in self.fields:
                self.fields["unit"].disabled = True

    def _get_validation_exclusions(self) -> set[str]:
        """Leaves the table's constraints to ``check_row``, whose messages are for people, at their
        field."""
        excluded: set[str] = super()._get_validation_exclusions()  # type: ignore[misc]
        return excluded | {"account", "key", "window_s"}

    @property
    def changed_columns(self) -> list[str]:
        return ["cap" if name == "amount" else name for name in self.changed_data]

    def check_row(self) -> None:
        word = self.cleaned_data["amount"].replace(",", "").strip()
        try:
            self.instance.cap = cap_of(self.instance.unit, word)
        except ValueError as error:
            raise MeteringValueError("amount", str(error)) from None
        try:
            services.budget_check(budget=self.instance)
        except MeteringValueError as error:
            field = "amount" if error.field == "cap" else error.field
            raise MeteringValueError(field, str(error)) from None


def status_of(budget: Budget) -> BudgetStatus:
    return budget_status(budget, now_unix_s=time.time())


def caps_left_words(budgets: Iterable[Budget]) -> str:
    return selectors.left_words(status_of(budget) for budget in budgets)


def requests_link(budget: Budget) -> SafeString:
    owner = {"key": budget.key_id} if budget.key_id else {"account": budget.account_id}
    return format_html('<a href="{}">Requests</a>', requests_url(**owner))


class BudgetStatusColumns:
    """Present amounts of budgets: a window that is over counts as begun again."""

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
    if not budget._state.adding:
        services.budget_update(actor=actor, budget=budget, changed_fields=form.changed_columns)
        return
    cap = Cap(unit=budget.unit, cap=budget.cap, window=budget.window, window_s=budget.window_s)
    made = services.budget_create(actor=actor, cap=cap, account=budget.account, key=budget.key)
    budget.pk = made.pk


def budgets_save(actor: Actor, formset: Any) -> None:
    formset.save(commit=False)
    for budget in formset.deleted_objects:
        services.budget_remove(actor=actor, budget=budget)
    for form in formset.forms:
        if form.has_changed() and form not in formset.deleted_forms:
            budget_save(actor, form.instance, form)
