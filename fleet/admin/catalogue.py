"""Catalogue models and aliases: the forms, and the Load and Unload actions."""

from __future__ import annotations

from functools import partial
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from unfold.widgets import UnfoldAdminSelectWidget

from fleet import selectors, services
from fleet.admin.catalogue_forms import AliasForm, CatalogueModelForm, fieldsets, setting_field
from fleet.admin.hub_page import hub_page
from fleet.admin.loading import (
    actor_of,
    load_on,
    load_placed,
    reload,
    show_outcome,
    unload_everywhere,
)
from fleet.admin.models_toml_page import export_file, import_page
from fleet.admin.remarks import deleted_remark, outdated_replicas, saved_remarks
from fleet.admin.unfold_types import AnyForm, UnfoldAdmin, action, display
from fleet.lifecycles import NeuronStatus
from fleet.management.sizes import size_text
from fleet.models import Alias, CatalogueModel, Neuron


class LoadOnNeuronForm(forms.Form):
    neuron = forms.ModelChoiceField(
        queryset=Neuron.objects.filter(status=NeuronStatus.ONLINE),
        widget=UnfoldAdminSelectWidget,
        help_text="Neurons that are online.",
    )


@admin.register(CatalogueModel)
class CatalogueModelAdmin(UnfoldAdmin):
    form = CatalogueModelForm
    list_display = (
        "name",
        "source",
        "file",
        "enabled",
        "pinned",
        "loaded_on",
        "weight_size",
        "alias_names",
    )
    list_filter = ("enabled", "pinned")
    list_before_template = "fleet/catalogue_pages.html"
    change_form_outer_before_template = "fleet/outdated_wanted.html"
    search_fields = ("name", "source", "description")
    actions = ("load_selected", "load_selected_on_neuron", "reload_outdated", "unload_selected")
    fieldsets = fieldsets()

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return (
            super()
            .get_queryset(request)
            .prefetch_related("aliases", "replicas__neuron", "load_measurements__neuron")
        )

    def get_urls(self) -> list[URLPattern]:
        pages = [
            ("hub/", "hub", partial(hub_page, self)),
            ("models-toml/", "import", partial(import_page, self)),
            ("models.toml", "export", partial(export_file, self)),
        ]
        return [
            path(at, self.admin_site.admin_view(page), name=f"fleet_cataloguemodel_{name}")
            for at, name, page in pages
        ] + super().get_urls()

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """Clients, neurons and jobs know a model by its name, so it stays."""
        return ("name",) if obj is not None else ()

    def formfield_for_dbfield(
        self, db_field: Any, request: HttpRequest, **options: Any
    ) -> forms.Field | None:
        return setting_field(db_field.name) or super().formfield_for_dbfield(
            db_field, request, **options
        )

    def has_operate_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("fleet.change_cataloguemodel")

    def save_model(self, request: HttpRequest, obj: Any, form: AnyForm, change: bool) -> None:
        if change:
            services.catalogue_model_update(
                actor=actor_of(request), model=obj, changed_fields=form.changed_data
            )
            self._remark(request, obj)
            return
        created = services.catalogue_model_create(actor=actor_of(request), **form.cleaned_data)
        obj.pk = created.pk
        obj.created_at = created.created_at
        self._remark(request, obj)

    def get_deleted_objects(
        self, objs: Any, request: HttpRequest
    ) -> tuple[list[Any], dict[str, int], set[str], list[str]]:
        """A base is not deleted before its adapters."""
        shown, counts, perms_needed, protected = super().get_deleted_objects(objs, request)
        leaving = {model.name for model in objs}
        adapters = [
            f"{model.name}, base of {adapter}"
            for model in objs
            for adapter in selectors.adapter_names(model.name)
            if adapter not in leaving
        ]
        return shown, counts, perms_needed, [*protected, *adapters]

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        remark = deleted_remark(obj)
        services.catalogue_model_delete(actor=actor_of(request), model=obj)
        if remark is not None:
            messages.info(request, remark)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        for model in queryset.order_by("-base"):
            self.delete_model(request, model)

    @display(description="Loaded on")
    def loaded_on(self, model: CatalogueModel) -> str:
        outdated = outdated_replicas(model)
        replicas = (
            f"{replica.neuron.name} ({replica.status}{', outdated' * (replica in outdated)})"
            for replica in model.replicas.all()
        )
        return ", ".join([*replicas, *(f"{name} (kept unloaded)" for name in model.unloaded_from)])

    @display(description="Weights", ordering="weight_bytes")
    def weight_size(self, model: CatalogueModel) -> str:
        return size_text(model.weight_bytes)

    @display(description="Aliases")
    def alias_names(self, model: CatalogueModel) -> str:
        return ", ".join(alias.name for alias in model.aliases.all())

    @action(description="Load where it fits", permissions=["operate"])
    def load_selected(
        self, request: HttpRequest, queryset: QuerySet[CatalogueModel]
    ) -> HttpResponse:
        for model in queryset:
            show_outcome(request, load_placed(model=model, actor=actor_of(request)))
        return HttpResponseRedirect(reverse("admin:fleet_loadjob_changelist"))

    @action(description="Load on a neuron of your choice", permissions=["operate"])
    def load_selected_on_neuron(
        self, request: HttpRequest, queryset: QuerySet[CatalogueModel]
    ) -> HttpResponse:
        """The first POST asks for the neuron, the second one (``chosen``) loads."""
        form = LoadOnNeuronForm(request.POST if "chosen" in request.POST else None)
        if not form.is_valid():
            return self._ask_for_neuron(request, queryset, form)
        neuron_name = form.cleaned_data["neuron"].name
        actor = actor_of(request)
        for model in queryset:
            outcome = load_on(model=model, neuron_name=neuron_name, actor=actor)
            show_outcome(request, outcome)
        return HttpResponseRedirect(reverse("admin:fleet_loadjob_changelist"))

    @action(description="Reload outdated models", permissions=["operate"])
    def reload_outdated(self, request: HttpRequest, queryset: QuerySet[CatalogueModel]) -> None:
        for model in queryset:
            replicas = outdated_replicas(model)
            for replica in replicas:
                outcome = reload(
                    actor=actor_of(request),
                    model_name=model.name,
                    neuron_name=replica.neuron.name,
                )
                show_outcome(request, outcome)
            if not replicas:
                messages.info(request, f"Nothing of {model.name} is outdated")

    @action(description="Unload", permissions=["operate"])
    def unload_selected(self, request: HttpRequest, queryset: QuerySet[CatalogueModel]) -> None:
        for model in queryset:
            for outcome in unload_everywhere(actor=actor_of(request), model=model):
                show_outcome(request, outcome)

    def _remark(self, request: HttpRequest, model: CatalogueModel) -> None:
        for remark in saved_remarks(model):
            messages.warning(request, remark)

    def _ask_for_neuron(
        self, request: HttpRequest, queryset: QuerySet[CatalogueModel], form: LoadOnNeuronForm
    ) -> HttpResponse:
        context = self.admin_site.each_context(request) | {
            "title": "Load on a neuron",
            "opts": self.model._meta,
            "models": queryset,
            "form": form,
            "action": "load_selected_on_neuron",
        }
        return TemplateResponse(request, "fleet/load_on_neuron.html", context)


@admin.register(Alias)
class AliasAdmin(UnfoldAdmin):
    form = AliasForm
    list_display = ("name", "model")
    list_select_related = ("model",)
    search_fields = ("name", "model__name")

    def save_model(self, request: HttpRequest, obj: Any, form: AnyForm, change: bool) -> None:
        if change:
            services.alias_update(
                actor=actor_of(request), alias=obj, changed_fields=form.changed_data
            )
            return
        obj.pk = services.alias_create(actor=actor_of(request), **form.cleaned_data).pk

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        services.alias_delete(actor=actor_of(request), alias=obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        for alias in queryset:
            services.alias_delete(actor=actor_of(request), alias=alias)
