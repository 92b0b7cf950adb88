"""What neurons have downloaded: pulling more, and deleting what no model uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from unfold.widgets import UnfoldAdminTextInputWidget

from fleet import services
from fleet.admin.loading import actor_of
from fleet.catalogue import SETTINGS
from fleet.catalogue.rules import EXAMPLE_SOURCE
from fleet.errors import FleetError
from fleet.lifecycles import LoadJobStatus
from fleet.live.cached_models import CachedLine, cached_list
from fleet.models import Download

if TYPE_CHECKING:
    from fleet.admin.reported import ReportedAdmin


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
    context = admin.admin_site.each_context(request) | {
        "title": "What neurons have downloaded",
        "opts": admin.model._meta,
        "form": PullForm() if "delete" in request.POST else form,
        "lines": _lines(request),
        "may_change": admin.has_operate_permission(request),
    }
    return TemplateResponse(request, "fleet/cached.html", context)


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
    """The broker may have refused the message by now."""
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
