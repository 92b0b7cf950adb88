"""Budgets and memberships, also below their account, key or person."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils.safestring import SafeString
from unfold.widgets import UnfoldAdminTextInputWidget

from fleet.admin import unfold_types as ui
from fleet.admin.unfold_types import actor_of
from helexa_site.templatetags.filters import moment_text
from metering import selectors, services
from metering.audit import Actor
from metering.models import Budget, Membership
from metering.money import amount_text, amount_words, cap_of
from metering.pages import account_url, key_url, requests_url
from metering.selectors import BudgetStatus, budget_status


class BudgetForm(ui.CheckedForm):
    cap = forms.CharField(
        widget=UnfoldAdminTextInputWidget,
        help_text="Tokens, as in 1000000, or US dollars, as in 12.50.",
    )

    class Meta:
        model = Budget
        fields = ("account", "key", "unit", "cap", "window", "window_s")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk is not None and "unit" in self.fields:
            self.initial["cap"] = amount_text(self.instance.unit, self.instance.cap)
            self.fields["unit"].disabled = True

    def clean_cap(self) -> int:
        word = self.cleaned_data["cap"].replace(",", "").strip()
        try:
            return cap_of(self.cleaned_data.get("unit", ""), word)
        except ValueError as error:
            raise ValidationError(str(error)) from None

    def _get_validation_exclusions(self) -> set[str]:
        """Leaves constraints to ``check_row``, whose messages are for people, at their field."""
        excluded: set[str] = super()._get_validation_exclusions()  # type: ignore[misc]
        return excluded | {"account", "key", "cap", "window_s"}

    def check_row(self) -> None:
        services.budget_check(budget=self.instance)


def caps_left(owner: Any) -> str:
    return selectors.left_words(_status(budget) for budget in owner.budgets.all())


def _status(budget: Budget) -> BudgetStatus:
    return budget_status(budget, now_unix_s=time.time())


def _window_end(budget: Budget) -> str:
    if (ends_s := _status(budget).window_ends_unix_s) is not None:
        return moment_text(datetime.fromtimestamp(ends_s, UTC))
    return "with its first request" if budget.window == Budget.Window.SECONDS else ""


def _requests(budget: Budget) -> SafeString | str:
    owner = {"key": budget.key_id} if budget.key_id else {"account": budget.account_id}
    return ui.linked("Requests", lambda _: requests_url(**owner))


def _stored(description: str, text_of: Callable[[Budget], Any]) -> Any:
    return ui.column(description, lambda one: "" if one.pk is None else text_of(one))


class StatusColumns:
    spent_now = _stored("Spent", lambda one: amount_text(one.unit, _status(one).spent))
    reserved_now = _stored("Reserved", lambda one: amount_text(one.unit, one.reserved))
    left_now = _stored("Left", lambda one: amount_text(one.unit, _status(one).left))
    window_end = _stored("Window ends", _window_end)
    requests = _stored("Requests", _requests)


STATUS_FIELDS = ("spent_now", "reserved_now", "left_now", "window_end", "requests")


class BudgetInline(StatusColumns, ui.TabularInline):
    model = Budget
    form = BudgetForm
    extra = 0
    fields = ("unit", "cap", "window", "window_s", *STATUS_FIELDS)
    readonly_fields = STATUS_FIELDS


@admin.register(Budget)
class BudgetAdmin(StatusColumns, ui.WrittenAdmin):
    form = BudgetForm
    writes = ui.Writes(
        "budget", services.budget_create, services.budget_update, services.budget_remove
    )
    fixed = ("account", "key")
    recorded = STATUS_FIELDS
    list_display = ("cap_now", "account_link", "key_link", "window", *STATUS_FIELDS)
    list_select_related = ("account", "key")
    list_filter = ("unit", "window")
    search_fields = ("account__name", "key__prefix", "key__name")
    autocomplete_fields = ("account", "key")
    fieldsets = ((None, {"fields": BudgetForm.Meta.fields}),)

    cap_now = ui.column("Cap", lambda budget: amount_words(budget.unit, budget.cap), ordering="cap")
    account_link = ui.linked_column("account_id", account_url, "Account")
    key_link = ui.linked_column("key_id", key_url, "Key")

    def created(self, actor: Actor, form: ui.AnyForm) -> Budget:
        return services.budget_create(actor=actor, budget=form.instance)


class MembershipInline(ui.TabularInline):
    model = Membership
    extra = 0
    fields = ("user", "role")
    verbose_name_plural = "people"


class AccountInline(ui.TabularInline):
    model = Membership
    fields = ("account", "role")
    verbose_name = "account"
    verbose_name_plural = "accounts"

    def get_extra(self, request: HttpRequest, obj: Any = None, **kwargs: Any) -> int:
        return int(obj is None)


def save_inline(page: Any, request: HttpRequest, form: Any, formset: Any, change: Any) -> None:
    actor = actor_of(request)
    formset.save(commit=False)
    if formset.model is Membership:
        _memberships_save(actor, formset)
        return
    for budget in formset.deleted_objects:
        services.budget_remove(actor=actor, budget=budget)
    for one in formset.forms:
        if not one.has_changed() or one in formset.deleted_forms:
            continue
        if one.instance._state.adding:
            services.budget_create(actor=actor, budget=one.instance)
        else:
            services.budget_update(
                actor=actor, budget=one.instance, changed_fields=one.changed_data
            )


def _memberships_save(actor: Actor, formset: Any) -> None:
    changed: Iterable[tuple[Membership, list[str]]] = formset.changed_objects
    moved = [row.pk for row, fields in changed if {"user", "account"} & set(fields)]
    for before in [*formset.deleted_objects, *Membership.objects.filter(pk__in=moved)]:
        services.membership_remove(actor=actor, membership=before)
    for row in [*(row for row, _ in changed), *formset.new_objects]:
        services.membership_set(actor=actor, account=row.account, user=row.user, role=row.role)
