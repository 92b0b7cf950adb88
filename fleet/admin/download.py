"""Downloads, with progress that refreshes, and the neurons' cached models."""

from __future__ import annotations

from functools import partial

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from unfold.widgets import UnfoldAdminTextInputWidget

from fleet import services
from fleet.admin.load_job import LOAD_JOB_LABELS, progress_of
from fleet.admin.loading import actor_of
from fleet.admin.unfold_types import ReportedAdmin, action, display, linked_column
from fleet.catalogue import SETTINGS
from fleet.catalogue.rules import EXAMPLE_SOURCE
from fleet.dashboard.links import neuron_url
from fleet.errors import FleetError
from fleet.lifecycles import LoadJobStatus
from fleet.live.cached_models import CachedLine, cached_list
from fleet.management.sizes import size_text
from fleet.models import Download
from helexa_site.web.pages import render_page


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
        done, total = download.bytes_done, download.bytes_total
        amount = f"{size_text(done)} of {size_text(total)}" if total else ""
        return progress_of(download, download.status, amount, download.detail)

    @action(description="Cancel", permissions=["operate"])
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[Download]) -> None:
        for download in queryset.select_related("neuron"):
            try:
                services.download_cancel(actor=actor_of(request), download=download)
            except FleetError as error:
                messages.error(request, f"{download}: {error}")
            else:
                messages.success(request, f"{download} is being cancelled; what came stays")


class PullForm(forms.Form):
    source = forms.CharField(
        max_length=500,
        widget=UnfoldAdminTextInputWidget,
        help_text=f"As {EXAMPLE_SOURCE}.",
    )
    file = forms.CharField(
        required=False,
        max_length=255,
        label="File or quant",
        widget=UnfoldAdminTextInputWidget,
        help_text=SETTINGS["file"].help_text,
    )
    revision = forms.CharField(
        required=False,
        max_length=100,
        widget=UnfoldAdminTextInputWidget,
        help_text=SETTINGS["revision"].help_text,
    )
    neuron = forms.CharField(
        required=False,
        max_length=100,
        widget=UnfoldAdminTextInputWidget,
        help_text="Empty: where some of it lies, else where the disk has most room.",
    )


def cached_page(admin: ReportedAdmin, request: HttpRequest) -> HttpResponse:
    """GET shows the page; POST pulls a model, or deletes one if it has ``delete``."""
    if not admin.has_view_permission(request):
        raise PermissionDenied
    form = PullForm(request.POST if request.method == "POST" else None)
    if request.method == "POST":
        if not admin.has_operate_permission(request):
            raise PermissionDenied
        done = _delete(request) if "delete" in request.POST else _pull(request, form)
        if done:
            return HttpResponseRedirect(reverse("admin:fleet_download_changelist"))
    context = {
        "opts": admin.opts,
        "form": PullForm() if "delete" in request.POST else form,
        "lines": _lines(request),
        "may_change": admin.has_operate_permission(request),
    }
    title = "What neurons have downloaded"
    return render_page(request, "fleet/cached.html", title=title, context=context)


def _pull(request: HttpRequest, form: PullForm) -> bool:
    if not form.is_valid():
        return False
    given = form.cleaned_data
    try:
        download = services.download_start(
            actor=actor_of(request),
            source=given["source"],
            file=given["file"] or None,
            revision=given["revision"] or None,
            neuron_name=given["neuron"] or None,
        )
    except FleetError as error:
        form.add_error(None, str(error))
        return False
    _show_outcome(request, download, f"{download} is being downloaded")
    return True


def _delete(request: HttpRequest) -> bool:
    try:
        download = services.download_delete_start(
            actor=actor_of(request),
            neuron_name=request.POST.get("neuron", ""),
            source=request.POST["delete"],
            revision=request.POST.get("revision", ""),
        )
    except FleetError as error:
        messages.error(request, str(error))
        return False
    _show_outcome(request, download, f"{download} is being deleted")
    return True


def _show_outcome(request: HttpRequest, download: Download, words: str) -> None:
    if download.status == LoadJobStatus.FAILED:
        messages.error(request, f"{download}: {download.failure_message}")
    else:
        messages.success(request, words)


def _lines(request: HttpRequest) -> tuple[CachedLine, ...]:
    try:
        return cached_list()
    except FleetError as error:
        messages.warning(request, f"{error}: what is cached is not known")
        return ()
