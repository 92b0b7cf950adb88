"""The bench's targets and plan. Its results have pages of their own."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from fleet.admin.loading import actor_of
from fleet.admin.unfold_types import CheckedForm, UnfoldAdmin, display
from metering.bench import store
from metering.bench.models import BenchTarget, SweepPlan


class TargetForm(CheckedForm):
    class Meta:
        labels = {"gpus": "GPUs"}

    def check_row(self) -> None:
        store.target_check(self.instance)


class PlanForm(CheckedForm):
    class Meta:
        labels = {
            "iteration_pause_s": "pause between iterations (seconds)",
            "request_timeout_s": "timeout of a request (seconds)",
            "sweep_interval_s": "time between sweeps (seconds)",
        }

    def check_row(self) -> None:
        store.plan_check(self.instance)


@admin.register(BenchTarget)
class BenchTargetAdmin(UnfoldAdmin):
    form = TargetForm
    list_display = ("name", "kind", "endpoint", "label", "enabled")
    list_filter = ("kind", "enabled")
    search_fields = ("name", "label", "endpoint")
    fields = ("name", *store.TARGET_FIELDS)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        store.target_save(actor=actor_of(request), target=obj)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        store.target_delete(actor=actor_of(request), target=obj)

    def delete_queryset(self, request: HttpRequest, queryset: Any) -> None:
        for target in queryset:
            store.target_delete(actor=actor_of(request), target=target)


@admin.register(SweepPlan)
class SweepPlanAdmin(UnfoldAdmin):
    """One row, which exists once it was saved; until then the defaults hold."""

    form = PlanForm
    list_display = ("__str__", "samples_per_version", "max_tokens", "interval")
    fields = store.PLAN_FIELDS

    @display(description="Time between sweeps (seconds)", ordering="sweep_interval_s")
    def interval(self, plan: SweepPlan) -> float:
        return plan.sweep_interval_s

    def has_add_permission(self, request: HttpRequest) -> bool:
        return super().has_add_permission(request) and not SweepPlan.objects.exists()

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        store.plan_save(actor=actor_of(request), plan=obj)
