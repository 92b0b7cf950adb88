"""Catalogue models and aliases: the forms, and the Load and Unload actions."""

from __future__ import annotations

from functools import partial
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.safestring import SafeString
from unfold.widgets import UnfoldAdminSelectWidget

from fleet import selectors, services
from fleet.admin.catalogue_forms import AliasForm, CatalogueModelForm, fieldsets, setting_field
from fleet.admin.hub import hub_page
from fleet.admin.loading import actor_of, load, on_model, on_replica, show_outcome
from fleet.admin.models_toml import export_file, import_page
from fleet.admin.remarks import deleted_remark, outdated_replicas, saved_remarks
from fleet.admin.replica_report import recent_errors
from fleet.admin.unfold_types import (
    AnyForm,
    HomePageAdmin,
    UnfoldAdmin,
    action,
    asking_first,
    display,
    linked_column,
    linked_list,
)
from fleet.dashboard.board import model_context
from fleet.dashboard.links import model_url, neuron_url
from fleet.lifecycles import NeuronStatus, RecordedReplicaStatus
from fleet.management.sizes import size_text
from fleet.models import Alias, CatalogueModel, Neuron
from helexa_site.web.pages import render_page
from metering import selectors as metering_selectors
from metering.links import requests_url
from metering.selectors import UsageFilter, UsageGroup
from metering.usage.rows import SumsRow, price_text, sums_row

MAX_USERS = 8


class LoadOnNeuronForm(forms.Form):
    neuron = forms.ModelChoiceField(
        queryset=Neuron.objects.filter(status=NeuronStatus.ONLINE),
        widget=UnfoldAdminSelectWidget,
        help_text="Neurons that are online.",
    )


class LoadedFilter(admin.SimpleListFilter):
    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("loaded", "Loaded"), ("failed", "Failed"), ("unloaded", "Not loaded")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """A replica of any state but failed counts as loaded."""
        match self.value():
            case "loaded":
                failed = RecordedReplicaStatus.FAILED
                loaded = [status for status in RecordedReplicaStatus if status != failed]
                return queryset.filter(replicas__status__in=loaded).distinct()
            case "failed":
                return queryset.filter(replicas__status=RecordedReplicaStatus.FAILED).distinct()
            case "unloaded":
                return queryset.filter(replicas__isnull=True)
        return queryset


@admin.register(CatalogueModel)
class CatalogueModelAdmin(HomePageAdmin):
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
    list_filter = (LoadedFilter, "enabled", "pinned", "replicas__neuron")
    list_before_template = "fleet/catalogue_pages.html"
    change_form_outer_before_template = "fleet/model_page.html"
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

    def home_context(self, obj: CatalogueModel) -> dict[str, Any]:
        return page_of_model(obj)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """The name is fixed: clients, neurons and jobs refer to it."""
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
    def loaded_on(self, model: CatalogueModel) -> SafeString:
        outdated = outdated_replicas(model)
        replicas = [
            (replica.neuron.name, f"{replica.status}{', outdated' * (replica in outdated)}")
            for replica in model.replicas.all()
        ]
        kept_unloaded = [(name, "kept unloaded") for name in model.unloaded_from]
        return linked_list([*replicas, *kept_unloaded], neuron_url)

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
            show_outcome(request, load(actor_of(request), model))
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
        for model in queryset:
            show_outcome(request, load(actor_of(request), model, neuron_name))
        return HttpResponseRedirect(reverse("admin:fleet_loadjob_changelist"))

    @action(description="Reload outdated models", permissions=["operate"])
    def reload_outdated(self, request: HttpRequest, queryset: QuerySet[CatalogueModel]) -> None:
        for model in queryset:
            replicas = outdated_replicas(model)
            for replica in replicas:
                show_outcome(request, on_replica("reload", actor_of(request), replica))
            if not replicas:
                messages.info(request, f"Nothing of {model.name} is outdated")

    @action(description="Unload", permissions=["operate"])
    @asking_first
    def unload_selected(self, request: HttpRequest, queryset: QuerySet[CatalogueModel]) -> None:
        for model in queryset:
            for outcome in on_model("unload", actor_of(request), model.name):
                show_outcome(request, outcome)

    def _remark(self, request: HttpRequest, model: CatalogueModel) -> None:
        for remark in saved_remarks(model):
            messages.warning(request, remark)

    def _ask_for_neuron(
        self, request: HttpRequest, queryset: QuerySet[CatalogueModel], form: LoadOnNeuronForm
    ) -> HttpResponse:
        context = {"opts": self.opts, "models": queryset, "form": form}
        return render_page(
            request,
            "fleet/load_on_neuron.html",
            title="Load on a neuron",
            context=context | {"action": "load_selected_on_neuron"},
        )


@admin.register(Alias)
class AliasAdmin(UnfoldAdmin):
    form = AliasForm
    list_display = ("name", "model_link")
    list_select_related = ("model",)
    search_fields = ("name", "model__name")

    model_link = linked_column("model__name", model_url, "Model")

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


def page_of_model(model: CatalogueModel) -> dict[str, Any]:
    return model_context(model) | {
        "users": _users(model.name),
        "price": price_text(model.settings(), selectors.catalogue_by_name().get(model.name)),
        "failures": recent_errors(model_name=model.name),
        "requests_url": requests_url(model=model.name),
    }


def _users(name: str) -> list[SumsRow]:
    period = metering_selectors.period_of(None, None, today=timezone.now().date())
    rows = metering_selectors.usage_list(
        by=UsageGroup.ACCOUNT, period=period, where=UsageFilter(model=name)
    )
    return [
        sums_row(row.name, row.sums, {"model": name, "account": row.name})
        for row in rows[:MAX_USERS]
    ]
