"""Load jobs and downloads: their actions and progress, and the neurons' cached models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.urls import reverse

from fleet import services
from fleet.admin import unfold_types as ui
from fleet.admin.unfold_types import Outcome, actor_of
from fleet.catalogue import SETTINGS
from fleet.catalogue.rules import EXAMPLE_SOURCE
from fleet.dashboard.links import model_url, neuron_url
from fleet.dashboard.rows import ProgressRow
from fleet.errors import FleetError, ModelAlreadyLoadedError
from fleet.lifecycles import LoadJobKind, LoadJobStatus
from fleet.models import CatalogueModel, Download, LoadJob, Replica
from fleet.placement.decisions import stage_evictions
from fleet.selectors import cached_list
from fleet.services.model_loads import EVERYWHERE, ON_NEURON
from fleet.words import DONE, left_words, size_text
from helexa_site.pages import render_page
from metering.audit import Actor

TIMES = ("created_at", "started_at", "reported_at", "finished_at")
FAILURE = ("failure_code", "failure_message")
CACHED = "What neurons have downloaded"
WORDS = {
    "unload": "Unloading {model} from {neuron}",
    "reload": "Reloading {model} on {neuron}",
    "sleep": "{model} on {neuron} falls asleep",
    "wake": "Waking {model} on {neuron}",
}


def load(actor: Actor, model: CatalogueModel, neuron_name: str | None = None) -> Outcome:
    """``neuron_name``: ``None`` lets placement choose. A replica of an earlier spec is reloaded."""
    try:
        job = services.model_load_start(actor=actor, model_name=model.name, neuron_name=neuron_name)
    except ModelAlreadyLoadedError as error:
        return Outcome(messages.INFO, str(error))
    except FleetError as error:
        return Outcome(messages.ERROR, f"{model.name}: {error}")
    word = "Reloading" if job.kind == LoadJobKind.RELOAD else "Loading"
    return _started(job, f"{word} {model.name} on {job.neuron.name}")


def on_replica(verb: str, actor: Actor, replica: Replica) -> Outcome:
    where = {"model_name": replica.model_name, "neuron_name": replica.neuron.name}
    (outcome,) = _begun(verb, lambda: [ON_NEURON[verb](actor=actor, **where)])
    return outcome


def on_model(verb: str, actor: Actor, model_name: str) -> list[Outcome]:
    begun = _begun(verb, lambda: EVERYWHERE[verb](actor=actor, model_name=model_name))
    return begun or [Outcome(messages.INFO, f"{model_name} is not loaded anywhere")]


def _begun(verb: str, start: Callable[[], list[LoadJob]]) -> list[Outcome]:
    try:
        jobs = start()
    except FleetError as error:
        return [Outcome(messages.ERROR, str(error))]
    words = WORDS[verb]
    return [
        _started(job, words.format(model=job.model_name, neuron=job.neuron.name)) for job in jobs
    ]


def cancel(actor: Actor, job: LoadJob) -> Outcome:
    try:
        unload_job = services.load_job_cancel(actor=actor, job=job)
    except FleetError as error:
        return Outcome(messages.ERROR, str(error))
    return _started(unload_job, f"Cancelling the {job.kind} of {job}", with_note=False)


def _started(job: LoadJob, words: str, *, with_note: bool = True) -> Outcome:
    if job.status == LoadJobStatus.FAILED:
        return Outcome(messages.ERROR, f"{job}: {job.failure_message}")
    note = f". {job.note}" if with_note and job.note else ""
    return Outcome(messages.INFO, f"{words}{note}", str(job.pk))


class JobAdmin(ui.ReportedAdmin):
    list_display: Any = (
        "neuron_link",
        "status_label",
        "progress_bar",
        "created_at",
        "finished_at",
        "requested_by",
        "failure_message",
    )
    list_select_related = ("neuron",)
    actions = ("cancel_selected",)

    neuron_link = ui.linked_column("neuron__name", neuron_url, "Neuron")
    status_label = ui.status_column()


def _progress(row: LoadJob | Download, stage: str, amount: str, detail: str) -> str:
    fraction = row.progress_fraction
    percent = None if fraction is None else round(100 * fraction)
    words = stage if percent is None else f"{stage} {percent} %"
    words += f" ({amount})" if amount else ""
    words += f", {detail}" if row.is_active and detail else ""
    words += left_words(row.eta_s)
    progress = ProgressRow(text=words, percent=percent if row.is_active else None)
    return render_to_string("fleet/progress.html", {"progress": progress})


def _load_progress(job: LoadJob) -> str:
    stage, amount = job.stage, f"{job.progress_done} of {job.progress_total} {job.progress_unit}"
    if job.progress_unit == "bytes":
        amount = f"{size_text(job.progress_done)} of {size_text(job.progress_total)}"
    if job.status == LoadJobStatus.SUCCEEDED:
        stage, amount = DONE[job.kind], ""
    elif job.is_active and job.replacement_id is not None:
        stage = job.note
    elif job.is_active and not stage:
        stage = "unloading" if job.started_at else "waiting for the neuron"
    return _progress(job, stage, amount if job.progress_total else "", job.progress_detail)


def _stages_in_words(job: LoadJob) -> str:
    parts = [
        f"layers {stage.layers[0]} to {stage.layers[1] - 1} on {stage.device}"
        f"{' of ' + stage.neuron if stage.neuron else ''}"
        for stage in job.stage_specs
    ]
    parts += [f"{model} leaves {there}" for there, model in stage_evictions(job.stage_specs)]
    if job.predicted_tokens_per_s:
        parts.append(f"{job.predicted_tokens_per_s:.1f} tokens per second are predicted")
    return "; ".join(parts) or "-"


@admin.register(LoadJob)
class LoadJobAdmin(JobAdmin):
    list_display = ("kind", "model_link", *JobAdmin.list_display)
    list_filter = ("kind", "status", "neuron", "model")
    fieldsets = ui.sections(
        {
            "": ("id", "kind", "model_link", "neuron", "requested_by"),
            "Progress": ("status_label", "progress_bar", "progress_detail", "note", "replacement"),
            "Placement": ("devices", "stages_in_words", "evict"),
            "Times": TIMES,
            "Failure": FAILURE,
        }
    )

    model_link = ui.linked_column("model_name", model_url, "Model")
    progress_bar = ui.column("Progress", _load_progress)
    stages_in_words = ui.column("Stages", _stages_in_words)
    cancel_selected = ui.each_row("Cancel", cancel)


def _download_progress(download: Download) -> str:
    done, total = download.bytes_done, download.bytes_total
    amount = f"{size_text(done)} of {size_text(total)}" if total else ""
    return _progress(download, download.status, amount, download.detail)


def _cancel_download(actor: Actor, download: Download) -> Outcome:
    try:
        services.download_cancel(actor=actor, download=download)
    except FleetError as error:
        return Outcome(messages.ERROR, f"{download}: {error}")
    return Outcome(messages.SUCCESS, f"{download} is being cancelled; what came stays")


class PullForm(forms.Form):
    source = ui.text_field(f"As {EXAMPLE_SOURCE}.", max_length=500, required=True)
    file = ui.text_field(SETTINGS["file"].help_text, max_length=255, label="File or quant")
    revision = ui.text_field(SETTINGS["revision"].help_text, max_length=100)
    neuron = ui.text_field(
        "Empty: where some of it lies, else where the disk has most room.", max_length=100
    )


def cached_page(request: HttpRequest, model_admin: JobAdmin) -> HttpResponse:
    may_change, is_post = model_admin.has_operate_permission(request), request.method == "POST"
    if not model_admin.has_view_permission(request) or (is_post and not may_change):
        raise PermissionDenied
    is_pull = is_post and "delete" not in request.POST
    form = PullForm(request.POST if is_pull else None)
    try:
        if is_post and (not is_pull or form.is_valid()):
            download = _pull(request, form.cleaned_data) if is_pull else _delete(request)
            verb = "downloaded" if is_pull else "deleted"
            if download.status == LoadJobStatus.FAILED:
                messages.error(request, f"{download}: {download.failure_message}")
            else:
                messages.success(request, f"{download} is being {verb}")
            return HttpResponseRedirect(reverse("admin:fleet_download_changelist"))
    except FleetError as error:
        messages.error(request, str(error))
    context = {
        "opts": model_admin.opts,
        "form": form,
        "lines": _lines(request),
        "may_change": may_change,
    }
    return render_page(request, "fleet/cached.html", title=CACHED, context=context)


def _pull(request: HttpRequest, given: dict[str, str]) -> Download:
    named: dict[str, Any] = {name: word or None for name, word in given.items()}
    return services.download_start(
        actor=actor_of(request), neuron_name=named.pop("neuron"), **named
    )


def _delete(request: HttpRequest) -> Download:
    return services.download_delete_start(
        actor=actor_of(request),
        neuron_name=request.POST.get("neuron", ""),
        source=request.POST["delete"],
        revision=request.POST.get("revision", ""),
    )


def _lines(request: HttpRequest) -> tuple[dict[str, Any], ...]:
    try:
        return cached_list()
    except FleetError as error:
        messages.warning(request, f"{error}: what is cached is not known")
        return ()


@admin.register(Download)
class DownloadAdmin(JobAdmin):
    list_before_template = "fleet/download_pages.html"
    list_display = ("source_and_file", "kind", *JobAdmin.list_display)
    list_filter = ("kind", "status", "neuron")
    search_fields = ("source",)
    custom_urls = (("cached/", "fleet_download_cached", cached_page),)
    fieldsets = ui.sections(
        {
            "": ("id", "kind", "neuron", "source", "file", "revision", "files", "requested_by"),
            "Progress": ("status_label", "progress_bar"),
            "Times": (*TIMES, "cancel_wanted_at"),
            "Failure": FAILURE,
        }
    )

    source_and_file = ui.column(
        "Source", lambda one: f"{one.source} {one.file}".strip(), ordering="source"
    )
    progress_bar = ui.column("Progress", _download_progress)
    cancel_selected = ui.each_row("Cancel", _cancel_download)
