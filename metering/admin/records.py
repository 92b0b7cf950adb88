"""The read-only records: ledger entries and hours of usage."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest
from django.utils.safestring import SafeString

from fleet.admin.unfold_types import ReadOnlyAdmin, UnfoldAdmin, display, linked, linked_column
from fleet.dashboard.links import model_url, neuron_url
from metering.links import account_url, key_url, request_url
from metering.models import ApiKey, LedgerEntry, UsageHour
from metering.money import usd_text
from metering.requests.shown import duration_text, shown_id


class RecordAdmin(ReadOnlyAdmin):
    """Records are final. All rows are not counted: there are many."""

    show_full_result_count = False


class KeyNames(UnfoldAdmin):
    """A column with the key's prefix and its name: records have only the prefix."""

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        names = ApiKey.objects.filter(prefix=OuterRef("key")).values("name")[:1]
        rows: QuerySet[Any] = super().get_queryset(request).annotate(key_name=Subquery(names))
        return rows

    @display(description="Key", ordering="key")
    def key_link(self, record: Any) -> SafeString | str:
        words = f"{record.key} ({record.key_name})" if record.key_name else record.key
        return linked(record.key, key_url, words)


@admin.register(LedgerEntry)
class LedgerEntryAdmin(KeyNames, RecordAdmin):
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
    fields = (
        "request_id",
        "request_link",
        "at",
        "account_link",
        "key_link",
        "model_link",
        "neuron_link",
        "endpoint",
        "client",
        "outcome",
        "prompt_tokens",
        "cached_tokens",
        "completion_tokens",
        "reasoning_tokens",
        "num_units",
        "unit",
        "cost",
        "first_token",
        "duration",
    )

    account_link = linked_column("account", account_url, "Account")
    model_link = linked_column("model", model_url, "Model")
    neuron_link = linked_column("neuron", neuron_url, "Neuron")

    @display(description="Request", ordering="request_id")
    def request_link(self, entry: LedgerEntry) -> SafeString | str:
        return linked(entry.request_id, request_url, shown_id(entry.request_id))

    @display(description="Cost", ordering="cost_micro_usd")
    def cost(self, entry: LedgerEntry) -> str:
        return usd_text(entry.cost_micro_usd)

    @display(description="Until its first token")
    def first_token(self, entry: LedgerEntry) -> str:
        return duration_text(entry.time_to_first_token_ms)

    @display(description="Until its end", ordering="duration_ms")
    def duration(self, entry: LedgerEntry) -> str:
        return duration_text(entry.duration_ms)


@admin.register(UsageHour)
class UsageHourAdmin(KeyNames, RecordAdmin):
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

    account_link = linked_column("account", account_url, "Account")
    model_link = linked_column("model", model_url, "Model")

    @display(description="Cost", ordering="cost_micro_usd")
    def cost(self, hour: UsageHour) -> str:
        return usd_text(hour.cost_micro_usd)
