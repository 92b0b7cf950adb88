"""The admin of accounts, API keys, the ledger and its hourly sums. Keys are shown once."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import Count, F, OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.safestring import SafeString
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget, UnfoldAdminSelect2MultipleWidget

from fleet.admin import unfold_types as ui
from fleet.admin.unfold_types import Outcome
from fleet.dashboard.links import model_url, neuron_url
from metering import selectors, services
from metering.admin.inlines import BudgetInline, MembershipInline, caps_left, save_inline
from metering.audit import Actor
from metering.models import Account, ApiKey, LedgerEntry, UsageHour
from metering.money import usd_text
from metering.pages import account_url, key_url, request_url, requests_url
from metering.pages.keys import KeyRowForm
from metering.pages.requests import duration_text, request_errors, request_rows, shown_id
from metering.principal import BUILT_IN_ACCOUNTS, LIMIT_FIELDS, Scope
from metering.request_filters import RequestFilter, requests_list
from metering.selectors import UsageFilter, UsageGroup, UsageSums, key_status
from metering.usage_rows import SumsRow, budget_rows, refusal_rows, sums_row


class ApiKeyForm(KeyRowForm):
    scopes = forms.MultipleChoiceField(
        choices=[(scope.value, scope.value) for scope in Scope],
        initial=[scope.value for scope in services.DEFAULT_SCOPES],
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
    )
    model_names = forms.MultipleChoiceField(
        required=False,
        label="Models",
        widget=UnfoldAdminSelect2MultipleWidget,
        help_text="What it may use; none means all.",
    )


def _revoke(actor: Actor, key: ApiKey) -> Outcome:
    if services.key_revoke(actor=actor, key=key):
        return Outcome(messages.SUCCESS, f"Revoked {key}")
    return Outcome(messages.INFO, f"{key} was revoked already")


@admin.register(ApiKey)
class ApiKeyAdmin(ui.WrittenAdmin):
    operating = "metering.change_apikey"
    form = ApiKeyForm
    writes = ui.Writes("key", services.key_create, services.key_update, services.key_revoke)
    fixed = ("account",)
    recorded = ("prefix", "created_at", "created_by", "last_used_at", "revoked_at")
    list_display = (
        "prefix",
        "name",
        "account_link",
        "status_label",
        "scope_names",
        "model_list",
        "caps_left",
        "expires_at",
        "last_used_at",
    )
    list_select_related = ("account",)
    list_filter = ("account", ("revoked_at", admin.EmptyFieldListFilter))
    search_fields = ("prefix", "name", "account__name")
    actions = ("revoke_selected",)
    fieldsets = ui.sections(
        {
            "": ("account", "name", "scopes", "model_names", "expires_at"),
            "Requests": ("names_end_user", "may_leave_network", "capture_until"),
            "Limits": LIMIT_FIELDS,
        }
    )

    account_link = ui.linked_column("account_id", account_url, "Account")
    status_label = ui.column("Status", key_status, label=ui.STATUS_LABELS)
    scope_names = ui.column("Scopes", lambda key: ", ".join(key.scopes))
    model_list = ui.column(
        "Models",
        lambda key: ui.linked_list(((name, "") for name in key.model_names), model_url) or "all",
    )
    caps_left = ui.column("Left of its caps", caps_left)
    revoke_selected = ui.each_row("Revoke, for good", _revoke, asks=True)
    save_formset = save_inline

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request).prefetch_related("budgets")
        return rows

    def get_inlines(self, request: HttpRequest, obj: Any) -> list[Any]:
        return [] if obj is None else [BudgetInline]

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        is_over = obj is not None and obj.revoked_at is not None
        return not is_over and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def created(self, actor: Actor, form: ui.AnyForm) -> ApiKey:
        created = services.key_create(actor=actor, **form.cleaned_data)
        vars(created.row)["shown_once"] = created.key
        return created.row

    def response_add(
        self, request: HttpRequest, obj: Any, post_url_continue: str | None = None
    ) -> HttpResponse:
        return ui.show_once(
            self,
            request,
            "metering/key_created.html",
            "A new API key",
            key=obj,
            shown_once=obj.shown_once,
        )


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
        is_free = obj is not None and obj.name not in BUILT_IN_ACCOUNTS and not obj.keys.exists()
        return is_free and super().has_delete_permission(request, obj)

    def home_context(self, obj: Account) -> dict[str, Any]:
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


def _key_link(record: Any) -> SafeString | str:
    words = f"{record.key} ({record.key_name})" if record.key_name else record.key
    return ui.linked(record.key, key_url, words)


class RecordAdmin(ui.ReadOnlyAdmin):
    """Rows are not counted: there are many."""

    show_full_result_count = False

    account_link = ui.linked_column("account", account_url, "Account")
    key_link = ui.column("Key", _key_link, ordering="key")
    model_link = ui.linked_column("model", model_url, "Model")
    cost = ui.column(
        "Cost", lambda record: usd_text(record.cost_micro_usd), ordering="cost_micro_usd"
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        names = ApiKey.objects.filter(prefix=OuterRef("key")).values("name")[:1]
        rows: QuerySet[Any] = super().get_queryset(request).annotate(key_name=Subquery(names))
        return rows


@admin.register(LedgerEntry)
class LedgerEntryAdmin(RecordAdmin):
    list_display = (
        "at",
        "request_link",
        "account_link",
        "key_link",
        "model_link",
        "prompt_tokens",
        "cached_tokens",
        "completion_tokens",
        "cost",
        "outcome",
        "duration",
        "client",
    )
    list_filter = ("account", "model", "outcome", "endpoint")
    date_hierarchy = "at"
    search_fields = ("request_id", "=key", "=account", "=model")
    fieldsets = ui.sections(
        {
            "": ("request_id", "request_link", "at", "account_link", "key_link", "model_link"),
            "Request": ("neuron_link", "endpoint", "client", "outcome", "first_token", "duration"),
            "Tokens": ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens"),
            "Cost": ("num_units", "unit", "cost"),
        }
    )

    neuron_link = ui.linked_column("neuron", neuron_url, "Neuron")
    request_link = ui.column(
        "Request",
        lambda entry: ui.linked(entry.request_id, request_url, shown_id(entry.request_id)),
        ordering="request_id",
    )
    first_token = ui.column(
        "Until its first token", lambda entry: duration_text(entry.time_to_first_token_ms)
    )
    duration = ui.column(
        "Until its end", lambda entry: duration_text(entry.duration_ms), ordering="duration_ms"
    )


@admin.register(UsageHour)
class UsageHourAdmin(RecordAdmin):
    list_display = (
        "hour",
        "account_link",
        "key_link",
        "model_link",
        "requests",
        "failed_requests",
        "prompt_tokens",
        "cached_tokens",
        "completion_tokens",
        "cost",
    )
    list_filter = ("account", "model")
    date_hierarchy = "hour"
    search_fields = ("=key", "=account", "=model")
    fields = (*list_display[:-1], "reasoning_tokens", "cost")
