"""The read-only records: ledger entries, hours of usage, and the audit."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from fleet.admin.unfold_types import UnfoldAdmin, display
from metering.models import AuditEntry, LedgerEntry, SetAsideReport, UsageHour
from metering.money import usd_text


class ReadOnlyAdmin(UnfoldAdmin):
    """No one adds or changes a record. The number of all rows is not counted: there are many."""

    show_full_result_count = False
    list_per_page = 50

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class RecordAdmin(ReadOnlyAdmin):
    """No one deletes a record either."""

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(LedgerEntry)
class LedgerEntryAdmin(RecordAdmin):
    list_display = (
        "at",
        "account",
        "key",
        "model",
        "prompt_tokens",
        "cached_tokens",
        "completion_tokens",
        "cost",
        "outcome",
        "duration_ms",
        "client",
    )
    list_filter = ("account", "model", "outcome", "endpoint")
    date_hierarchy = "at"
    search_fields = ("request_id", "=key", "=account", "=model")
    fields = (
        "request_id",
        "at",
        "account",
        "key",
        "model",
        "neuron",
        "endpoint",
        "client",
        "outcome",
        "prompt_tokens",
        "cached_tokens",
        "completion_tokens",
        "reasoning_tokens",
        "cost",
        "time_to_first_token_ms",
        "duration_ms",
    )

    @display(description="Cost", ordering="cost_micro_usd")
    def cost(self, entry: LedgerEntry) -> str:
        return usd_text(entry.cost_micro_usd)


@admin.register(UsageHour)
class UsageHourAdmin(RecordAdmin):
    list_display = (
        "hour",
        "account",
        "key",
        "model",
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

    @display(description="Cost", ordering="cost_micro_usd")
    def cost(self, hour: UsageHour) -> str:
        return usd_text(hour.cost_micro_usd)


@admin.register(SetAsideReport)
class SetAsideReportAdmin(ReadOnlyAdmin):
    """An operator may delete the rows once they have been read."""

    list_display = ("at", "neuron", "reason", "request_id", "account", "num_more")
    list_filter = ("neuron",)
    date_hierarchy = "at"
    search_fields = ("neuron", "request_id", "=account")
    fields = list_display


@admin.register(AuditEntry)
class AuditEntryAdmin(RecordAdmin):
    list_display = ("at", "actor", "action", "object_id", "summary")
    list_filter = ("action",)
    date_hierarchy = "at"
    search_fields = ("actor", "action", "object_id")
    fields = ("at", "actor", "action", "object_id", "whole_detail")

    @display(description="Detail")
    def summary(self, entry: AuditEntry) -> str:
        text = json.dumps(entry.detail) if entry.detail else ""
        return text if len(text) <= 120 else f"{text[:119]}…"

    @display(description="Detail")
    def whole_detail(self, entry: AuditEntry) -> SafeString:
        return format_html("<pre>{}</pre>", json.dumps(entry.detail, indent=2))
