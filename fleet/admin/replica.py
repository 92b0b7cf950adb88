"""Replicas: the loaded models by neuron, with actions to unload and reload them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from django.contrib import admin
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.safestring import mark_safe

from fleet import selectors
from fleet.admin.loading import on_replica
from fleet.admin.replica_report import memory_words, recent_errors, report_rows
from fleet.admin.unfold_types import (
    ReportedAdmin,
    column,
    each_row,
    linked,
    linked_column,
    sections,
)
from fleet.catalogue.outdated import is_outdated
from fleet.dashboard.links import model_url, neuron_url
from fleet.lifecycles import NeuronStatus, RecordedReplicaStatus
from fleet.models import Replica
from metering.links import requests_url

STATUS_LABELS = {
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


def _spec(replica: Replica) -> str:
    entry = selectors.catalogue_find(replica.model_name)
    if entry is None:
        return NOT_OFFERED
    return OUTDATED if is_outdated(replica.spec_digest, entry) else UP_TO_DATE


def _live(description: str, figure: Callable[[Replica], str], ordering: str | None = None) -> Any:
    """A live figure; empty where its neuron is offline."""

    def shown(replica: Replica) -> str:
        statuses = (replica.status, replica.neuron.status)
        is_away = RecordedReplicaStatus.AWAY in statuses or NeuronStatus.AWAY in statuses
        return "" if is_away else figure(replica)

    return column(description, shown, ordering=ordering)


def _reported(description: str, field: str) -> Any:
    """A field of the load report; empty before the load has ended, and where the report lacks
    it."""
    return column(description, lambda replica: (replica.report or {}).get(field, ""))


def _part(description: str, template: str, context_of: Callable[[Replica], dict[str, Any]]) -> Any:
    return column(description, lambda one: mark_safe(render_to_string(template, context_of(one))))


def _errors(replica: Replica) -> dict[str, Any]:
    name, neuron = replica.model_name, replica.neuron
    return {
        "errors": recent_errors(model_name=name, neuron=neuron),
        "requests_url": requests_url(model=name, neuron=neuron.name),
    }


def _action(verb: str, description: str, **options: Any) -> Any:
    return each_row(description, partial(on_replica, verb), **options)


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
    fieldsets = sections(
        {
            "": ("model_link", "neuron", "device_names", "adapter_names", "job_link"),
            "Status": ("status_label", "spec_label", "status_since", "last_used_at", "restarts"),
            "Now": ("running", "waiting", "kv_use", "tokens_per_s"),
            "Failure": ("failure_code", "failure_message"),
            "Load": ("quantization", "quality", "context", "memory", "load_report"),
            "Log": ("recent_errors", "engine_log"),
        }
    )

    model_link = linked_column("model_name", model_url, "Model")
    neuron_link = linked_column("neuron__name", neuron_url, "Neuron")
    placed_on = column("Replica", lambda replica: ", ".join(replica.devices) or "its page")
    job_link = column(
        "Load job",
        lambda replica: linked(
            replica.job_id, lambda job_id: reverse("admin:fleet_loadjob_change", args=[job_id])
        ),
    )
    status_label = column(
        "Status", lambda one: one.get_status_display(), ordering="status", label=STATUS_LABELS
    )
    spec_label = column("Spec", _spec, label=SPEC_LABELS)
    running = _live("Running", lambda replica: f"{replica.in_flight:,}", "in_flight")
    waiting = _live("Waiting", lambda replica: f"{replica.queue_depth:,}", "queue_depth")
    tokens_per_s = _live(
        "Tokens/s", lambda replica: f"{replica.decode_tokens_per_s:.1f}", "decode_tokens_per_s"
    )
    kv_use = _live(
        "KV blocks", lambda replica: f"{replica.kv_blocks_used:,} of {replica.kv_blocks_total:,}"
    )
    restarts = column("Restarts", lambda replica: replica.num_restarts, ordering="num_restarts")
    device_names = column("Devices", lambda replica: ", ".join(replica.devices))
    adapter_names = column("Adapters", lambda replica: ", ".join(replica.adapters))
    quantization = _reported("Weights", "quantization")
    quality = _reported("Quality", "quality")
    context = _reported("Context", "context_reason")
    memory = column("Memory", memory_words)
    load_report = _part(
        "Load report", "fleet/load_report.html", lambda replica: {"rows": report_rows(replica)}
    )
    engine_log = _part(
        "Engine's log", "fleet/engine_log_wanted.html", lambda replica: {"replica": replica}
    )
    recent_errors = _part("Recent errors", "fleet/recent_errors.html", _errors)

    unload_selected = _action("unload", "Unload", asks=True)
    reload_selected = _action("reload", "Reload by the catalogue")
    sleep_selected = _action("sleep", "Sleep")
    wake_selected = _action("wake", "Wake")
