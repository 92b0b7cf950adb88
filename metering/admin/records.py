"""The read-only records: ledger entries and hours of usage."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest
from django.utils.safestring import SafeString

from fleet.admin import unfold_types as ui
from fleet.dashboard.links import model_url, neuron_url
from metering.links import account_url, key_url, request_url
from metering.models import ApiKey, LedgerEntry, UsageHour
from metering.money import usd_text
from metering.pages.requests import duration_text, shown_id


def _key_link(record: Any) -> SafeString | str:
    words = f"{record.key} ({record.key_name})" if record.key_name else record.key
    return ui.linked(record.key, key_url, words)


class RecordAdmin(ui.ReadOnlyAdmin):
    """Records are final, and have only the prefix of their key. All rows are not counted: there are
    many."""

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
