"""The bench's targets and plan. Its results have pages of their own."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from fleet.admin.unfold_types import UnfoldAdmin, actor_of
from metering.bench.models import BenchTarget, SweepPlan, setting_names
from metering.bench.services import row_save, target_delete


class RowAdmin(UnfoldAdmin):
    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        row_save(actor=actor_of(request), row=obj)


@admin.register(BenchTarget)
class BenchTargetAdmin(RowAdmin):
    list_display = ("name", "kind", "endpoint", "label", "enabled")
    list_filter = ("kind", "enabled")
    search_fields = ("name", "label", "endpoint")
    fields = ("name", *setting_names(BenchTarget))

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        target_delete(actor=actor_of(request), target=obj)

    def delete_queryset(self, request: HttpRequest, queryset: Any) -> None:
        for target in queryset:
            self.delete_model(request, target)


@admin.register(SweepPlan)
class SweepPlanAdmin(RowAdmin):
    """One row, which exists once it was saved; until then the defaults hold."""

    list_display = ("__str__", "samples_per_version", "max_tokens", "sweep_interval_s")
    fields = setting_names(SweepPlan)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return super().has_add_permission(request) and not SweepPlan.objects.exists()

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
