"""Replicas: the loaded models by neuron, with actions to unload and reload them."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.safestring import SafeString, mark_safe

from fleet import selectors
from fleet.admin.loading import actor_of, on_replica, show_outcome
from fleet.admin.replica_report import recent_errors, report_rows
from fleet.admin.unfold_types import (
    ReportedAdmin,
    action,
    asking_first,
    display,
    linked,
    linked_column,
)
from fleet.catalogue.outdated import is_outdated
from fleet.dashboard.links import model_url, neuron_url
from fleet.lifecycles import NeuronStatus, RecordedReplicaStatus
from fleet.management.sizes import size_text
from fleet.models import Replica
from metering.links import requests_url

REPLICA_LABELS = {
    RecordedReplicaStatus.READY.label: "success",
    RecordedReplicaStatus.LOADING.label: "info",
    RecordedReplicaStatus.RECOVERING.label: "warning",
    RecordedReplicaStatus.DRAINING.label: "warning",
    RecordedReplicaStatus.ASLEEP.label: "default",
    RecordedReplicaStatus.FAILED.label: "danger",
    RecordedReplicaStatus.AWAY.label: "danger",
}

UP_TO_DATE, OUTDATED, NOT_OFFERED = "up to date", "outdated", "not in the catalogue"
SPEC_LABELS = {UP_TO_DATE: "success", OUTDATED: "warning", NOT_OFFERED: "danger"}


@admin.register(Replica)
class ReplicaAdmin(ReportedAdmin):
    list_display = (
        "model_link",
        "neuron_link",
        "placed_on",
        "status_label",
        "spec_label",
        "status_since",
        "running",
        "waiting",
        "kv_use",
        "tokens_per_s",
        "restarts",
        "failure_message",
    )
    list_display_links = ("placed_on",)
    list_select_related = ("neuron",)
    list_filter = ("status", "neuron")
    search_fields = ("model_name",)
    actions = ("unload_selected", "reload_selected", "sleep_selected", "wake_selected")
    fields = (
        "model_link",
        "neuron",
        "status_label",
        "spec_label",
        "status_since",
        "device_names",
        "adapter_names",
        "last_used_at",
        "job_link",
        "running",
        "waiting",
        "kv_use",
        "tokens_per_s",
        "restarts",
        "failure_code",
        "failure_message",
        "quantization",
        "quality",
        "context",
        "memory",
        "load_report",
        "recent_errors",
        "engine_log",
    )

    model_link = linked_column("model_name", model_url, "Model")
    neuron_link = linked_column("neuron__name", neuron_url, "Neuron")

    @display(description="Replica")
    def placed_on(self, replica: Replica) -> str:
        return ", ".join(replica.devices) or "its page"

    @display(description="Load job")
    def job_link(self, replica: Replica) -> SafeString | str:
        return linked(str(replica.job_id or ""), _job_url)

    @display(description="Running", ordering="in_flight")
    def running(self, replica: Replica) -> str:
        return _live(replica, f"{replica.in_flight:,}")

    @display(description="Waiting", ordering="queue_depth")
    def waiting(self, replica: Replica) -> str:
        return _live(replica, f"{replica.queue_depth:,}")

    @display(description="Tokens/s", ordering="decode_tokens_per_s")
    def tokens_per_s(self, replica: Replica) -> str:
        return _live(replica, f"{replica.decode_tokens_per_s:.1f}")

    @display(description="Restarts", ordering="num_restarts")
    def restarts(self, replica: Replica) -> int:
        return replica.num_restarts

    @display(description="Status", ordering="status", label=REPLICA_LABELS)
    def status_label(self, replica: Replica) -> str:
        return replica.get_status_display()

    @display(description="Spec", label=SPEC_LABELS)
    def spec_label(self, replica: Replica) -> str:
        entry = selectors.catalogue_find(replica.model_name)
        if entry is None:
            return NOT_OFFERED
        return OUTDATED if is_outdated(replica.spec_digest, entry) else UP_TO_DATE

    @display(description="Devices")
    def device_names(self, replica: Replica) -> str:
        return ", ".join(replica.devices)

    @display(description="Adapters")
    def adapter_names(self, replica: Replica) -> str:
        """The least recently used first."""
        return ", ".join(replica.adapters)

    @display(description="KV blocks")
    def kv_use(self, replica: Replica) -> str:
        return _live(replica, f"{replica.kv_blocks_used:,} of {replica.kv_blocks_total:,}")

    @display(description="Weights")
    def quantization(self, replica: Replica) -> str:
        return _reported(replica, "quantization")

    @display(description="Quality")
    def quality(self, replica: Replica) -> str:
        """The loss by quantising while loading; empty where the weights are as in their file."""
        return _reported(replica, "quality")

    @display(description="Context")
    def context(self, replica: Replica) -> str:
        """The limit in force, and the other limits."""
        return _reported(replica, "context_reason")

    @display(description="Memory")
    def memory(self, replica: Replica) -> str:
        words = "" if replica.report is None else _memory_in_words(replica.report)
        if replica.status != RecordedReplicaStatus.ASLEEP:
            return words
        held = f"Asleep: {size_text(replica.memory_bytes or 0)} of its devices"
        away = f", {size_text(replica.host_memory_bytes)} of the host's memory beside that"
        return f"{held}{away if replica.host_memory_bytes else ''}. Awake: {words}"

    @display(description="Load report")
    def load_report(self, replica: Replica) -> SafeString | str:
        if replica.report is None:
            return "Not loaded yet"
        return mark_safe(render_to_string("fleet/load_report.html", {"rows": report_rows(replica)}))

    @display(description="Engine's log")
    def engine_log(self, replica: Replica) -> SafeString:
        return mark_safe(render_to_string("fleet/engine_log_wanted.html", {"replica": replica}))

    @display(description="Recent errors")
    def recent_errors(self, replica: Replica) -> SafeString:
        return mark_safe(
            render_to_string(
                "fleet/recent_errors.html",
                {
                    "errors": recent_errors(model_name=replica.model_name, neuron=replica.neuron),
                    "requests_url": requests_url(
                        model=replica.model_name, neuron=replica.neuron.name
                    ),
                },
            )
        )

    @action(description="Unload", permissions=["operate"])
    @asking_first
    def unload_selected(self, request: HttpRequest, queryset: QuerySet[Replica]) -> None:
        _with_each("unload", request, queryset)

    @action(description="Reload by the catalogue", permissions=["operate"])
    def reload_selected(self, request: HttpRequest, queryset: QuerySet[Replica]) -> None:
        _with_each("reload", request, queryset)

    @action(description="Sleep", permissions=["operate"])
    def sleep_selected(self, request: HttpRequest, queryset: QuerySet[Replica]) -> None:
        _with_each("sleep", request, queryset)

    @action(description="Wake", permissions=["operate"])
    def wake_selected(self, request: HttpRequest, queryset: QuerySet[Replica]) -> None:
        _with_each("wake", request, queryset)


def _job_url(job_id: str) -> str:
    return reverse("admin:fleet_loadjob_change", args=[job_id])


def _live(replica: Replica, figure: str) -> str:
    """A live figure; empty where its neuron is offline."""
    is_away = replica.neuron.status == NeuronStatus.AWAY
    return "" if is_away or replica.status == RecordedReplicaStatus.AWAY else figure


def _with_each(verb: str, request: HttpRequest, queryset: QuerySet[Replica]) -> None:
    for replica in queryset.select_related("neuron"):
        show_outcome(request, on_replica(verb, actor_of(request), replica))


def _reported(replica: Replica, field: str) -> str:
    """A field of the load report; empty before the load has ended, and where the report lacks
    it."""
    return "" if replica.report is None else str(replica.report.get(field, ""))


def _memory_in_words(report: dict[str, Any]) -> str:
    actual_bytes, estimated_bytes = report.get("actual_bytes", 0), report.get("estimated_bytes", 0)
    if not actual_bytes:
        return ""
    kv = f"{report.get('kv_dtype', '')} KV".strip()
    adapter_bytes = report.get("adapter_bytes", 0)
    room = f" and {size_text(adapter_bytes)} for adapters" if adapter_bytes else ""
    return (
        f"{size_text(actual_bytes)}, of them {size_text(report['kv_bytes'])} {kv}{room}; "
        f"{size_text(estimated_bytes)} were estimated "
        f"({estimated_bytes / actual_bytes - 1:+.1%}). The engine process itself takes "
        f"{size_text(report.get('process_bytes', 0))} more"
    )
