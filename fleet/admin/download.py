"""Downloads: how each goes, refreshed while one looks; and what neurons have cached."""

from __future__ import annotations

from functools import partial

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.urls import URLPattern, path

from fleet import services
from fleet.admin.linked_names import linked_column
from fleet.admin.load_job import LOAD_JOB_LABELS
from fleet.admin.loading import actor_of
from fleet.admin.model_pages.cached import cached_page
from fleet.admin.reported import ReportedAdmin
from fleet.admin.unfold_types import action, display
from fleet.dashboard.links import neuron_url
from fleet.errors import FleetError
from fleet.management.sizes import size_text
from fleet.models import Download


@admin.register(Download)
class DownloadAdmin(ReportedAdmin):
    list_before_template = "fleet/download_pages.html"
    list_display = (
        "source_and_file",
        "neuron_link",
        "kind",
        "status_label",
        "progress_bar",
        "created_at",
        "finished_at",
        "requested_by",
        "failure_message",
    )
    list_select_related = ("neuron",)
    list_filter = ("kind", "status", "neuron")
    search_fields = ("source",)
    actions = ("cancel_selected",)
    fields = (
        "id",
        "kind",
        "neuron",
        "source",
        "file",
        "revision",
        "files",
        "status_label",
        "progress_bar",
        "requested_by",
        "created_at",
        "started_at",
        "reported_at",
        "cancel_wanted_at",
        "finished_at",
        "failure_code",
        "failure_message",
    )

    def get_urls(self) -> list[URLPattern]:
        page = self.admin_site.admin_view(partial(cached_page, self))
        return [path("cached/", page, name="fleet_download_cached"), *super().get_urls()]

    neuron_link = linked_column("neuron__name", neuron_url, "Neuron")

    @display(description="Source", ordering="source")
    def source_and_file(self, download: Download) -> str:
        return f"{download.source} {download.file}".strip()

    @display(description="Status", ordering="status", label=LOAD_JOB_LABELS)
    def status_label(self, download: Download) -> str:
        return download.get_status_display()

    @display(description="Progress")
    def progress_bar(self, download: Download) -> str:
        fraction = download.progress_fraction
        done, total = download.bytes_done, download.bytes_total
        return render_to_string(
            "fleet/load_progress.html",
            {
                "stage": download.status,
                "percent": None if fraction is None else round(100 * fraction),
                "amount": f"{size_text(done)} of {size_text(total)}" if total else "",
                "detail": download.detail,
                "eta_s": download.eta_s,
                "is_active": download.is_active,
            },
        )

    @action(description="Cancel", permissions=["operate"])
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[Download]) -> None:
        for download in queryset.select_related("neuron"):
            try:
                services.download_cancel(actor=actor_of(request), download=download)
            except FleetError as error:
                messages.error(request, f"{download}: {error}")
            else:
                messages.success(request, f"{download} is being cancelled; what came stays")
