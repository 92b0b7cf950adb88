"""The catalogue as a models.toml: pasted or uploaded, its difference shown, then applied."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from unfold.widgets import (
    UnfoldAdminFileFieldWidget,
    UnfoldAdminTextareaWidget,
    UnfoldBooleanWidget,
)

from fleet import selectors, services
from fleet.admin.loading import actor_of
from fleet.admin.unfold_types import UnfoldAdmin
from fleet.errors import FleetError
from fleet.models_toml import Document, plan_import, read_document, write_document
from fleet.models_toml.reading import MAX_BYTES
from helexa_site.web.pages import render_page


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

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        if (file := cleaned.get("file")) is not None:
            cleaned["text"] = _text_of(file)
        if not cleaned.get("text"):
            self.add_error("text", "There is nothing to import")
        return cleaned


def import_page(request: HttpRequest, model_admin: UnfoldAdmin) -> HttpResponse:
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


def export_file(request: HttpRequest, model_admin: UnfoldAdmin) -> HttpResponse:
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
    num_models, num_aliases = len(plan.models), len(plan.aliases)
    models = f"{num_models} model{'' if num_models == 1 else 's'}"
    aliases = f"{num_aliases} alias{'' if num_aliases == 1 else 'es'}"
    messages.success(request, f"Imported: {models} and {aliases} changed")
    return HttpResponseRedirect(reverse("admin:fleet_cataloguemodel_changelist"))


def _text_of(file: Any) -> str:
    if file.size > MAX_BYTES:
        raise forms.ValidationError({"file": f"More than {MAX_BYTES:,} bytes"})
    try:
        return str(file.read().decode("utf-8"))
    except UnicodeDecodeError:
        raise forms.ValidationError({"file": "This is not text in UTF-8"}) from None
