"""Load jobs: the progress of each load, unload and reload, refreshed while the page is open."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.loader import render_to_string

from fleet.admin.loading import actor_of, cancel, show_outcome
from fleet.admin.unfold_types import ReportedAdmin, action, display, linked_column
from fleet.dashboard.links import model_url, neuron_url
from fleet.dashboard.rows import ProgressRow
from fleet.dashboard.words import DONE, left_words
from fleet.lifecycles import LoadJobStatus
from fleet.management.sizes import size_text
from fleet.models import Download, LoadJob
from fleet.placement.decisions import stage_evictions

LOAD_JOB_LABELS = {
    LoadJobStatus.PENDING.label: "warning",
    LoadJobStatus.RUNNING.label: "info",
    LoadJobStatus.SUCCEEDED.label: "success",
    LoadJobStatus.FAILED.label: "danger",
    LoadJobStatus.CANCELLED.label: "default",
}


@admin.register(LoadJob)
class LoadJobAdmin(ReportedAdmin):
    list_display = (
        "kind",
        "model_link",
        "neuron_link",
        "status_label",
        "progress_bar",
        "created_at",
        "finished_at",
        "requested_by",
        "failure_message",
    )
    list_select_related = ("neuron",)
    list_filter = ("kind", "status", "neuron", "model")
    actions = ("cancel_selected",)
    fields = (
        "id",
        "kind",
        "model_link",
        "neuron",
        "devices",
        "stages_in_words",
        "evict",
        "status_label",
        "note",
        "replacement",
        "progress_bar",
        "progress_detail",
        "requested_by",
        "created_at",
        "started_at",
        "reported_at",
        "finished_at",
        "failure_code",
        "failure_message",
    )

    model_link = linked_column("model_name", model_url, "Model")
    neuron_link = linked_column("neuron__name", neuron_url, "Neuron")

    @display(description="Status", ordering="status", label=LOAD_JOB_LABELS)
    def status_label(self, job: LoadJob) -> str:
        return job.get_status_display()

    @display(description="Progress")
    def progress_bar(self, job: LoadJob) -> str:
        amount = "" if job.status == LoadJobStatus.SUCCEEDED else _amount(job)
        return progress_of(job, _stage_in_words(job), amount, job.progress_detail)

    @display(description="Stages")
    def stages_in_words(self, job: LoadJob) -> str:
        parts = [
            f"layers {stage.layers[0]} to {stage.layers[1] - 1} on {stage.device}"
            f"{' of ' + stage.neuron if stage.neuron else ''}"
            for stage in job.stage_specs
        ]
        parts += [f"{model} leaves {there}" for there, model in stage_evictions(job.stage_specs)]
        if job.predicted_tokens_per_s:
            parts.append(f"{job.predicted_tokens_per_s:.1f} tokens per second are predicted")
        return "; ".join(parts) or "-"

    @action(description="Cancel", permissions=["operate"])
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[LoadJob]) -> None:
        for job in queryset.select_related("neuron"):
            show_outcome(request, cancel(actor_of(request), job))


def progress_of(row: LoadJob | Download, stage: str, amount: str, detail: str) -> str:
    """Renders the progress of the present stage. One that failed or was cancelled shows where it
    ended."""
    fraction = row.progress_fraction
    percent = None if fraction is None else round(100 * fraction)
    words = stage if percent is None else f"{stage} {percent} %"
    words += f" ({amount})" if amount else ""
    words += f", {detail}" if row.is_active and detail else ""
    words += left_words(row.eta_s)
    progress = ProgressRow(text=words, percent=percent if row.is_active else None)
    return render_to_string("fleet/progress.html", {"progress": progress})


def _stage_in_words(job: LoadJob) -> str:
    if job.status == LoadJobStatus.SUCCEEDED:
        return DONE[job.kind]
    if not job.is_active:
        return job.stage
    if job.replacement_id is not None:
        return job.note
    return job.stage or ("unloading" if job.started_at else "waiting for the neuron")


def _amount(job: LoadJob) -> str:
    if not job.progress_total:
        return ""
    if job.progress_unit == "bytes":
        return f"{size_text(job.progress_done)} of {size_text(job.progress_total)}"
    return f"{job.progress_done} of {job.progress_total} {job.progress_unit}"
