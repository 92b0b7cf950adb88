"""Adding a model from Hugging Face or a named source: name a repository or search, see its models
and where they fit, choose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from unfold.widgets import UnfoldAdminSelectWidget

from fleet import selectors, services
from fleet.admin.loading import actor_of, load, show_outcome
from fleet.admin.remarks import no_host_remark
from fleet.admin.unfold_types import UnfoldAdmin, text_field
from fleet.errors import FleetError, SnapshotUnavailableError
from fleet.hub.offers import Choice, HubRepository, choices_of, offers_of
from fleet.live import reading as live
from fleet.live.snapshot import FleetSnapshot
from helexa_site.web.pages import render_page
from inference.loading.sources.hub_sources import default_scheme, hub_schemes
from inference.settings.storage import SOURCES

if TYPE_CHECKING:
    from fleet.hub.client import HubClient


def _schemes() -> list[tuple[str, str]]:
    return [(name, name) for name in dict.fromkeys((default_scheme(), *hub_schemes()))]


class LookForm(forms.Form):
    source = forms.ChoiceField(
        required=False,
        choices=_schemes,
        widget=UnfoldAdminSelectWidget,
        help_text=f"Whom to ask. {SOURCES.name} names others than Hugging Face.",
    )
    words = text_field("Words of a name. Needs a hub that this gateway reaches.", label="Search")
    repository = text_field(
        "org/name, as in Qwen/Qwen3-0.6B. Shows its files and where each fits.", max_length=200
    )
    revision = text_field("A branch, tag or commit. Empty: the newest.", max_length=100)

    @property
    def source_name(self) -> str:
        return self.cleaned_data["source"] or default_scheme()


def hub_page(request: HttpRequest, model_admin: UnfoldAdmin) -> HttpResponse:
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
    from fleet.hub.client import HubClient  # takes a second, and few processes need it

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
