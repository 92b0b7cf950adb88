"""Catalogue models and aliases: the forms, and the Load and Unload actions."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString
from unfold.widgets import UnfoldAdminSelectWidget

from fleet import selectors, services
from fleet.admin.catalogue_forms import fieldsets, setting_field
from fleet.admin.hub import hub_page
from fleet.admin.loading import Outcome, actor_of, load, on_model, on_replica, show_outcome
from fleet.admin.models_toml import export_file, import_page
from fleet.admin.remarks import outdated_replicas, saved_remarks
from fleet.admin.replica_report import recent_errors
from fleet.admin.unfold_types import (
    AnyForm,
    Writes,
    WrittenAdmin,
    action,
    checked_form,
    column,
    each_row,
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
from metering.actor import Actor
from metering.links import requests_url
from metering.selectors import UsageFilter, UsageGroup
from metering.usage.rows import SumsRow, price_text, sums_row

MAX_USERS = 8
JOBS = "admin:fleet_loadjob_changelist"


class LoadOnNeuronForm(forms.Form):
    neuron = forms.ModelChoiceField(
        queryset=Neuron.objects.filter(status=NeuronStatus.ONLINE),
        widget=UnfoldAdminSelectWidget,
        help_text="Neurons that are online.",
    )


class LoadedFilter(admin.SimpleListFilter):
    """A replica of any state but failed counts as loaded."""

    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("loaded", "Loaded"), ("failed", "Failed"), ("unloaded", "Not loaded")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        failed = RecordedReplicaStatus.FAILED
        wanted: dict[str, dict[str, Any]] = {
            "loaded": {"replicas__status__in": set(RecordedReplicaStatus) - {failed}},
            "failed": {"replicas__status": failed},
            "unloaded": {"replicas__isnull": True},
        }
        return queryset.filter(**wanted.get(self.value() or "", {})).distinct()


def _reload_outdated(actor: Actor, model: CatalogueModel) -> list[Outcome]:
    reloads = [on_replica("reload", actor, replica) for replica in outdated_replicas(model)]
    return reloads or [Outcome(messages.INFO, f"Nothing of {model.name} is outdated")]


def _loaded_on(model: CatalogueModel) -> SafeString:
    outdated = outdated_replicas(model)
    replicas = [
        (replica.neuron.name, f"{replica.status}{', outdated' * (replica in outdated)}")
        for replica in model.replicas.all()
    ]
    return linked_list(
        [*replicas, *((name, "kept unloaded") for name in model.unloaded_from)], neuron_url
    )


@admin.register(CatalogueModel)
class CatalogueModelAdmin(WrittenAdmin):
    form = checked_form(lambda model: services.catalogue_model_check(model=model))
    writes = Writes(
        "model",
        services.catalogue_model_create,
        services.catalogue_model_update,
        services.catalogue_model_delete,
    )
    fixed = ("name",)
    fieldsets = fieldsets()
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
    custom_urls = (
        ("hub/", "fleet_cataloguemodel_hub", hub_page),
        ("models-toml/", "fleet_cataloguemodel_import", import_page),
        ("models.toml", "fleet_cataloguemodel_export", export_file),
    )
    actions = ("load_selected", "load_selected_on_neuron", "reload_outdated", "unload_selected")

    loaded_on = column("Loaded on", _loaded_on)
    weight_size = column(
        "Weights", lambda model: size_text(model.weight_bytes), ordering="weight_bytes"
    )
    alias_names = column("Aliases", lambda model: ", ".join(map(str, model.aliases.all())))

    load_selected = each_row("Load where it fits", load, leads_to=JOBS)
    reload_outdated = each_row("Reload outdated models", _reload_outdated)
    unload_selected = each_row(
        "Unload", lambda actor, model: on_model("unload", actor, model.name), asks=True
    )

    @action(description="Load on a neuron of your choice", permissions=["operate"])
    def load_selected_on_neuron(
        self, request: HttpRequest, queryset: QuerySet[CatalogueModel]
    ) -> HttpResponse:
        """The first POST asks for the neuron, the second one (``chosen``) loads."""
        form = LoadOnNeuronForm(request.POST if "chosen" in request.POST else None)
        if not form.is_valid():
            context = {"opts": self.opts, "models": queryset, "form": form}
            return render_page(
                request, "fleet/load_on_neuron.html", title="Load on a neuron", context=context
            )
        for model in queryset:
            neuron_name = form.cleaned_data["neuron"].name
            show_outcome(request, load(actor_of(request), model, neuron_name))
        return HttpResponseRedirect(reverse(JOBS))

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return (
            super()
            .get_queryset(request)
            .prefetch_related("aliases", "replicas__neuron", "load_measurements__neuron")
        )

    def formfield_for_dbfield(
        self, db_field: Any, request: HttpRequest, **options: Any
    ) -> forms.Field | None:
        return setting_field(db_field.name) or super().formfield_for_dbfield(
            db_field, request, **options
        )

    def home_context(self, obj: CatalogueModel) -> dict[str, Any]:
        return model_context(obj) | {
            "users": _users(obj.name),
            "price": price_text(obj.settings(), selectors.catalogue_by_name().get(obj.name)),
            "failures": recent_errors(model_name=obj.name),
            "requests_url": requests_url(model=obj.name),
        }

    def save_model(self, request: HttpRequest, obj: Any, form: AnyForm, change: bool) -> None:
        super().save_model(request, obj, form, change)
        for remark in saved_remarks(obj):
            messages.warning(request, remark)

    def users_of(self, rows: Any) -> list[str]:
        """A base is not deleted before its adapters."""
        leaving = {model.name for model in rows}
        return [
            f"{model.name}, base of {adapter}"
            for model in rows
            for adapter in selectors.adapter_names(model.name)
            if adapter not in leaving
        ]

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        neurons = [replica.neuron.name for replica in obj.replicas.all()]
        super().delete_model(request, obj)
        if neurons:
            messages.info(request, f"It leaves the memory of {', '.join(neurons)}")

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        super().delete_queryset(request, queryset.order_by("-base"))


@admin.register(Alias)
class AliasAdmin(WrittenAdmin):
    form = checked_form(lambda alias: services.alias_check(alias=alias))
    writes = Writes("alias", services.alias_create, services.alias_update, services.alias_delete)
    list_display = ("name", "model_link")
    list_select_related = ("model",)
    search_fields = ("name", "model__name")

    model_link = linked_column("model__name", model_url, "Model")


def _users(name: str) -> list[SumsRow]:
    period = metering_selectors.period_of(None, None, today=timezone.now().date())
    rows = metering_selectors.usage_list(
        by=UsageGroup.ACCOUNT, period=period, where=UsageFilter(model=name)
    )
    return [
        sums_row(row.name, row.sums, {"model": name, "account": row.name})
        for row in rows[:MAX_USERS]
    ]
