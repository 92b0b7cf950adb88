"""Adds to the catalogue from a hub's repository, or from a models.toml after showing the
difference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.defaultfilters import pluralize
from django.urls import reverse
from unfold.widgets import (
    UnfoldAdminFileFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldBooleanWidget,
)

from fleet import selectors, services
from fleet.admin import unfold_types as ui
from fleet.admin.job import load
from fleet.admin.unfold_types import actor_of, show_outcome
from fleet.errors import FleetError, SnapshotUnavailableError
from fleet.hub import Choice, HubRepository, choices_of, offers_of
from fleet.live import reading as live
from fleet.live.snapshot import FleetSnapshot
from fleet.models import CatalogueModel
from fleet.models_toml import MAX_BYTES, Document, read_document
from fleet.models_toml_plan import plan_import, write_document
from fleet.overview import fleet_overview
from helexa_site.pages import render_page
from inference.loading.sources.hub_sources import default_scheme, hub_schemes
from inference.settings.storage import SOURCES

if TYPE_CHECKING:
    from fleet.hub_client import HubClient


def _schemes() -> list[tuple[str, str]]:
    return [(name, name) for name in dict.fromkeys((default_scheme(), *hub_schemes()))]


class LookForm(forms.Form):
    source = forms.ChoiceField(
        required=False,
        choices=_schemes,
        widget=UnfoldAdminSelectWidget,
        help_text=f"Whom to ask. {SOURCES.name} names others than Hugging Face.",
    )
    words = ui.text_field("Words of a name. Needs a hub that this gateway reaches.", label="Search")
    repository = ui.text_field(
        "org/name, as in Qwen/Qwen3-0.6B. Shows its files and where each fits.", max_length=200
    )
    revision = ui.text_field("A branch, tag or commit. Empty: the newest.", max_length=100)

    @property
    def source_name(self) -> str:
        return self.cleaned_data["source"] or default_scheme()


def hub_page(request: HttpRequest, model_admin: ui.UnfoldAdmin) -> HttpResponse:
    if not model_admin.has_add_permission(request):
        raise PermissionDenied
    form = LookForm(request.POST if request.method == "POST" else request.GET)
    context: dict[str, Any] = {"opts": model_admin.opts, "form": form}
    try:
        if form.is_valid() and (name := form.cleaned_data["repository"]):
            revision = form.cleaned_data["revision"] or None
            repository = _client(form).repository(name, revision)
            if request.method == "POST":
                return _add(request, repository, revision)
            context |= {"repository": repository, "choices": _choices(request, repository)}
        elif form.is_valid() and form.cleaned_data["words"]:
            context["matches"] = _client(form).search(form.cleaned_data["words"])
    except FleetError as error:
        messages.error(request, str(error))
    return render_page(request, "fleet/hub.html", title="Add from Hugging Face", context=context)


def _client(form: LookForm) -> HubClient:
    from fleet.hub_client import HubClient  # takes a second, and few processes need it

    return HubClient(form.source_name)


def _choices(request: HttpRequest, repository: HubRepository) -> tuple[Choice, ...]:
    try:
        snapshot = live.read_snapshot_sync(live.redis_client())
    except SnapshotUnavailableError as error:
        messages.warning(request, f"{error}: where the files fit is not known")
        snapshot = FleetSnapshot(neurons=())
    return choices_of(repository, snapshot, selectors.catalogue_by_name())


def _add(request: HttpRequest, repository: HubRepository, revision: str | None) -> HttpResponse:
    chosen = request.POST.get("offer")
    offer = next((offer for offer in offers_of(repository) if offer.label == chosen), None)
    if offer is None:
        messages.error(request, f"{repository.name} no longer has {chosen}")
        return HttpResponseRedirect(reverse("admin:fleet_cataloguemodel_hub"))
    model = services.catalogue_model_create(
        actor=actor_of(request),
        name=request.POST.get("name", ""),
        **offer.settings(repository, revision),
    )
    added = f"{model.name} is in the catalogue"
    if "load" in request.POST:
        messages.success(request, added)
        show_outcome(request, load(actor_of(request), model))
        return HttpResponseRedirect(reverse("admin:index"))
    if no_host := no_host_remark(model):
        messages.warning(request, f"{added}. {no_host}")
    else:
        messages.success(request, f"{added}. It is loaded when it is requested")
    return HttpResponseRedirect(reverse("admin:fleet_cataloguemodel_change", args=[model.pk]))


def no_host_remark(model: CatalogueModel) -> str:
    lines = fleet_overview().models
    why = next((line.no_host for line in lines if line.name == model.name), "")
    return f"No host can run {model.name}: {why}" if why else ""


class ImportForm(forms.Form):
    text = forms.CharField(
        required=False,
        label="models.toml",
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 18, "spellcheck": "false"}),
        help_text="Paste it here, or choose a file. Nothing changes before you have seen what "
        "would.",
    )
    file = forms.FileField(required=False, widget=UnfoldAdminFileFieldWidget)
    prune = forms.BooleanField(
        required=False,
        widget=UnfoldBooleanWidget,
        help_text="Remove models and aliases that the file does not name.",
    )

    def clean_file(self) -> str:
        file = self.cleaned_data["file"]
        if file is not None and file.size > MAX_BYTES:
            raise forms.ValidationError(f"More than {MAX_BYTES:,} bytes")
        try:
            return "" if file is None else str(file.read().decode("utf-8"))
        except UnicodeDecodeError:
            raise forms.ValidationError("This is not text in UTF-8") from None

    def clean(self) -> None:
        self.cleaned_data["text"] = self.cleaned_data.get("file") or self.cleaned_data.get("text")
        if not self.cleaned_data["text"] and not self.errors:
            self.add_error("text", "There is nothing to import")


def import_page(request: HttpRequest, model_admin: ui.UnfoldAdmin) -> HttpResponse:
    """A first POST shows the difference; a second one, with its digest, applies it."""
    if not (model_admin.has_add_permission(request) and model_admin.has_change_permission(request)):
        raise PermissionDenied
    form = ImportForm(request.POST or None, request.FILES or None)
    plan = None
    if form.is_valid():
        is_pruning = form.cleaned_data["prune"]
        if is_pruning and not model_admin.has_delete_permission(request):
            raise PermissionDenied
        try:
            document = read_document(form.cleaned_data["text"])
            plan = plan_import(document, selectors.catalogue_state(), prune=is_pruning)
            if seen := request.POST.get("seen"):
                return _apply(request, document, is_pruning, seen)
        except FleetError as error:
            form.add_error("text", str(error).splitlines())
    context = {
        "opts": model_admin.opts,
        "form": form,
        "plan": plan,
        "text": form.cleaned_data.get("text", "") if plan is not None else "",
        "is_pruning": plan is not None and form.cleaned_data["prune"],
    }
    title = "Import a models.toml"
    return render_page(request, "fleet/models_toml.html", title=title, context=context)


def export_file(request: HttpRequest, model_admin: ui.UnfoldAdmin) -> HttpResponse:
    if not model_admin.has_view_permission(request):
        raise PermissionDenied
    return HttpResponse(
        write_document(selectors.catalogue_state()),
        content_type="application/toml",
        headers={"Content-Disposition": 'attachment; filename="models.toml"'},
    )


def _apply(request: HttpRequest, document: Document, is_pruning: bool, seen: str) -> HttpResponse:
    plan = services.catalogue_import(
        actor=actor_of(request), document=document, prune=is_pruning, seen=seen
    )
    models, aliases = len(plan.models), len(plan.aliases)
    changed = f"{models} model{pluralize(models)} and {aliases} alias{pluralize(aliases, 'es')}"
    messages.success(request, f"Imported: {changed} changed")
    return HttpResponseRedirect(reverse("admin:fleet_cataloguemodel_changelist"))
