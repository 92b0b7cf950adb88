"""Replicas by neuron: load reports, recent errors and actions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from django.contrib import admin
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import mark_safe

from fleet import selectors
from fleet.admin import unfold_types as ui
from fleet.admin.job import on_replica
from fleet.catalogue.entry import is_outdated
from fleet.dashboard.links import model_url, neuron_url
from fleet.lifecycles import LoadJobStatus, NeuronStatus, RecordedReplicaStatus
from fleet.models import LoadJob, Neuron, Replica
from fleet.words import size_text
from metering.pages import requests_url
from metering.pages.requests import ERRORS_FOR, MAX_ERRORS, RecentError, request_errors

ROWS = {
    "Weights": "quantization",
    "Quality": "quality",
    "Context": "context_reason",
    "Memory": "actual_bytes",
    "Memory that was estimated": "estimated_bytes",
    "Memory for adapters": "adapter_bytes",
    "Memory of the engine process beside that": "process_bytes",
    "Architecture": "architecture",
    "Parameters": "num_parameters",
    "Device": "device",
    "Computes in": "dtype",
    "Weights take": "weight_bytes",
    "Keys and values take": "kv_bytes",
    "Keys and values in": "kv_dtype",
    "Blocks of keys and values": "num_kv_blocks",
    "Tokens of a block": "kv_block_tokens",
    "Tokens of context": "context_tokens",
    "Dimensions of vectors": "embedding_dimensions",
    "Ranks": "ranks",
    "Divided": "stages",
    "Devices take": "stage_memory",
    "Tokens per second predicted": "predicted_tokens_per_s",
    "Decode step": "compiled",
    "Drafts": "speculation",
    "Loaded in seconds": "load_seconds",
    "Sampling defaults": "generation_defaults",
    "Structured output": "grammar_problem",
    "Chat template": "template_problem",
    "Warnings": "warnings",
}


def report_rows(replica: Replica) -> list[tuple[str, str]]:
    report = replica.report or {}
    rows = [(words, _text(name, report.get(name))) for words, name in ROWS.items()]
    if drafted := replica.num_drafted_tokens:
        right = replica.num_accepted_drafts
        words = f"{right:,} of {drafted:,} ({right / drafted:.0%})"
        rows.append(("Drafts that were right", words))
    return [(words, text) for words, text in rows if text]


def _text(name: str, value: Any) -> str:
    match value:
        case list():
            return "; ".join(_text(name, one) for one in value)
        case dict():
            return ", ".join(
                f"{key.removesuffix('_bytes')} {_text(key, one)}" for key, one in value.items()
            )
        case int() if value and name.endswith("_bytes"):
            return size_text(value)
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.4g}"
    return str(value or "")


def recent_errors(*, model_name: str = "", neuron: Neuron | None = None) -> list[RecentError]:
    jobs = LoadJob.objects.filter(
        status=LoadJobStatus.FAILED, finished_at__gte=timezone.now() - ERRORS_FOR
    )
    where = {}
    if model_name:
        jobs, where["model"] = jobs.filter(model_name=model_name), model_name
    if neuron is not None:
        jobs, where["neuron"] = jobs.filter(neuron=neuron), neuron.name
    found = request_errors(**where)
    found += [
        RecentError(at=job.finished_at, what=job.kind, message=job.failure_message)
        for job in jobs[:MAX_ERRORS]
        if job.finished_at is not None
    ]
    return sorted(found, key=lambda error: error.at, reverse=True)[:MAX_ERRORS]


def _spec(replica: Replica) -> str:
    entry = selectors.catalogue_find(replica.model_name)
    if entry is None:
        return "not in the catalogue"
    return "outdated" if is_outdated(replica.spec_digest, entry) else "up to date"


def _live(description: str, figure: Callable[[Replica], str], ordering: str | None = None) -> Any:

    def shown(replica: Replica) -> str:
        statuses = (replica.status, replica.neuron.status)
        is_away = RecordedReplicaStatus.AWAY in statuses or NeuronStatus.AWAY in statuses
        return "" if is_away else figure(replica)

    return ui.column(description, shown, ordering=ordering)


def _part(description: str, template: str, context_of: Callable[[Replica], dict[str, Any]]) -> Any:
    return ui.column(
        description, lambda one: mark_safe(render_to_string(template, context_of(one)))
    )


def _errors(replica: Replica) -> dict[str, Any]:
    name, neuron = replica.model_name, replica.neuron
    return {
        "errors": recent_errors(model_name=name, neuron=neuron),
        "requests_url": requests_url(model=name, neuron=neuron.name),
    }


@admin.register(Replica)
class ReplicaAdmin(ui.ReportedAdmin):
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
    fieldsets = ui.sections(
        {
            "": ("model_link", "neuron", "device_names", "adapter_names", "job_link"),
            "Status": ("status_label", "spec_label", "status_since", "last_used_at", "restarts"),
            "Now": ("running", "waiting", "kv_use", "tokens_per_s"),
            "Failure": ("failure_code", "failure_message"),
            "Load": ("memory", "host_memory", "load_report"),
            "Log": ("recent_errors", "engine_log"),
        }
    )

    model_link = ui.linked_column("model_name", model_url, "Model")
    neuron_link = ui.linked_column("neuron__name", neuron_url, "Neuron")
    placed_on = ui.column("Replica", lambda replica: ", ".join(replica.devices) or "its page")
    job_link = ui.column(
        "Load job",
        lambda replica: ui.linked(
            replica.job_id, lambda job_id: reverse("admin:fleet_loadjob_change", args=[job_id])
        ),
    )
    status_label = ui.status_column()
    spec_label = ui.column("Spec", _spec, label=ui.STATUS_LABELS)
    running = _live("Running", lambda replica: f"{replica.in_flight:,}", "in_flight")
    waiting = _live("Waiting", lambda replica: f"{replica.queue_depth:,}", "queue_depth")
    tokens_per_s = _live(
        "Tokens/s", lambda replica: f"{replica.decode_tokens_per_s:.1f}", "decode_tokens_per_s"
    )
    kv_use = _live(
        "KV blocks", lambda replica: f"{replica.kv_blocks_used:,} of {replica.kv_blocks_total:,}"
    )
    restarts = ui.column("Restarts", lambda replica: replica.num_restarts, ordering="num_restarts")
    device_names = ui.column("Devices", lambda replica: ", ".join(replica.devices))
    adapter_names = ui.column("Adapters", lambda replica: ", ".join(replica.adapters))
    memory = ui.column("Memory on its devices", lambda one: size_text(one.memory_bytes or 0))
    host_memory = ui.column("Memory beside them", lambda one: size_text(one.host_memory_bytes))
    load_report = _part(
        "Load report", "fleet/load_report.html", lambda replica: {"rows": report_rows(replica)}
    )
    engine_log = _part(
        "Engine's log", "fleet/engine_log_wanted.html", lambda replica: {"replica": replica}
    )
    recent_errors = _part("Recent errors", "fleet/recent_errors.html", _errors)

    unload_selected = ui.each_row("Unload", partial(on_replica, "unload"), asks=True)
    reload_selected = ui.each_row("Reload by the catalogue", partial(on_replica, "reload"))
    sleep_selected = ui.each_row("Sleep", partial(on_replica, "sleep"))
    wake_selected = ui.each_row("Wake", partial(on_replica, "wake"))
