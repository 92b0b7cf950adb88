"""Catalogue models with Load and Unload, aliases, and upstreams with their test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString
from unfold.widgets import (
    UnfoldAdminPasswordWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
)

from fleet import selectors, services
from fleet.admin import unfold_types as ui
from fleet.admin.adding import export_file, hub_page, import_page, no_host_remark
from fleet.admin.job import load, on_model, on_replica
from fleet.admin.replica import recent_errors
from fleet.admin.unfold_types import Outcome, actor_of, show_outcome
from fleet.catalogue import SETTINGS
from fleet.catalogue.entry import is_outdated
from fleet.catalogue.kinds import Money, NeuronNames, Targets
from fleet.catalogue.targets import UPSTREAM_PREFIX
from fleet.dashboard.board import model_context
from fleet.dashboard.links import model_url, neuron_url
from fleet.errors import FleetError
from fleet.lifecycles import NeuronStatus
from fleet.models import Alias, CatalogueModel, Neuron, Replica, Upstream
from fleet.services.upstreams import CHANGEABLE
from fleet.upstreams import check_secret
from fleet.words import size_text
from metering import selectors as metering_selectors
from metering.audit import Actor
from metering.pages import requests_url
from metering.selectors import UsageFilter, UsageGroup
from metering.usage_rows import price_text, sums_row

COMMON = ("source", "file", "enabled", "pinned", "quantization", "max_context_tokens")
MAX_USERS = 8
JOBS = "admin:fleet_loadjob_changelist"
KEY_FIELDS = ("key", "removes_key")
LIMITS = ("concurrency", "connect_timeout_s", "first_token_timeout_s", "token_timeout_s")
TESTED_WORDS = {True: "works", False: "does not work", None: "not tested"}


def _setting_field(name: str) -> forms.Field | None:
    if name not in SETTINGS:
        return None
    setting = SETTINGS[name]
    label = (setting.label or name.replace("_", " ")).capitalize()
    options: dict[str, Any] = {"label": label, "help_text": setting.help_text, "required": False}
    match setting.kind:
        case Money():
            return ui.UsdField(min_value=0, max_digits=15, decimal_places=6, **options)
        case NeuronNames():
            widget = UnfoldAdminTextInputWidget()
            return ui.ListField(separator=r"[,\s]", joint=", ", widget=widget, **options)
        case Targets():
            area = UnfoldAdminTextareaWidget({"rows": 3, "placeholder": "one a line"})
            return ui.ListField(separator=r"\n", joint="\n", widget=area, **options)
        case _:
            return None


def _fieldsets() -> ui.Fieldsets:
    folded: dict[str, list[str]] = {}
    for name, setting in SETTINGS.items():
        if name not in COMMON:
            title = f"Advanced: {setting.section.value or 'Offer'}"
            folded.setdefault(title, []).append(name)
    advanced = [
        (title, fields | {"classes": ["collapse"]}) for title, fields in ui.sections(folded)
    ]
    return (*ui.sections({"": ("name", *COMMON)}), *advanced)


class LoadOnNeuronForm(forms.Form):
    neuron = forms.ModelChoiceField(
        queryset=Neuron.objects.filter(status=NeuronStatus.ONLINE),
        widget=UnfoldAdminSelectWidget,
        help_text="Neurons that are online.",
    )


def outdated_replicas(model: CatalogueModel) -> list[Replica]:
    """Reads replicas with neurons, aliases and measurements: prefetch them for many models."""
    replicas = list(model.replicas.all())
    if not replicas:
        return []
    entry = model.entry()
    return [replica for replica in replicas if is_outdated(replica.spec_digest, entry)]


def _remarks(model: CatalogueModel) -> Iterator[str]:
    if no_host := no_host_remark(model):
        yield no_host
    for replica in outdated_replicas(model):
        where = replica.neuron.name
        yield f"{model.name} on {where} is outdated: it serves as loaded until it is reloaded"
    settings = model.settings()
    for replica in model.replicas.all():
        where = replica.neuron.name
        if settings.pinned_on and where not in settings.pinned_on:
            names = " or ".join(settings.pinned_on)
            yield f"{model.name} moves from {where} once it can be loaded on {names}"
    if not settings.enabled and (adapters := selectors.adapter_names(model.name)):
        yield f"Its adapters are not offered either: {', '.join(adapters)}"


def _reload_outdated(actor: Actor, model: CatalogueModel) -> list[Outcome]:
    reloads = [on_replica("reload", actor, replica) for replica in outdated_replicas(model)]
    return reloads or [Outcome(messages.INFO, f"Nothing of {model.name} is outdated")]


def _loaded_on(model: CatalogueModel) -> SafeString:
    outdated = outdated_replicas(model)
    replicas = [
        (replica.neuron.name, f"{replica.status}{', outdated' * (replica in outdated)}")
        for replica in model.replicas.all()
    ]
    return ui.linked_list(
        [*replicas, *((name, "kept unloaded") for name in model.unloaded_from)], neuron_url
    )


@admin.register(CatalogueModel)
class CatalogueModelAdmin(ui.WrittenAdmin):
    form = ui.checked_form(lambda model: services.catalogue_model_check(model=model))
    writes = ui.Writes(
        "model",
        services.catalogue_model_create,
        services.catalogue_model_update,
        services.catalogue_model_delete,
    )
    fixed = ("name",)
    fieldsets = _fieldsets()
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
    list_filter = (
        "replicas__status",
        ("replicas", admin.EmptyFieldListFilter),
        "enabled",
        "pinned",
        "replicas__neuron",
    )
    list_before_template = "fleet/catalogue_pages.html"
    change_form_outer_before_template = "fleet/model_page.html"
    search_fields = ("name", "source", "description")
    custom_urls = (
        ("hub/", "fleet_cataloguemodel_hub", hub_page),
        ("models-toml/", "fleet_cataloguemodel_import", import_page),
        ("models.toml", "fleet_cataloguemodel_export", export_file),
    )
    actions = ("load_selected", "load_selected_on_neuron", "reload_outdated", "unload_selected")

    loaded_on = ui.column("Loaded on", _loaded_on)
    weight_size = ui.column(
        "Weights", lambda model: size_text(model.weight_bytes), ordering="weight_bytes"
    )
    alias_names = ui.column("Aliases", lambda model: ", ".join(map(str, model.aliases.all())))

    load_selected = ui.each_row("Load where it fits", load, leads_to=JOBS)
    reload_outdated = ui.each_row("Reload outdated models", _reload_outdated)
    unload_selected = ui.each_row(
        "Unload", lambda actor, model: on_model("unload", actor, model.name), asks=True
    )

    @admin.action(description="Load on a neuron of your choice", permissions=["operate"])
    def load_selected_on_neuron(
        self, request: HttpRequest, queryset: QuerySet[CatalogueModel]
    ) -> HttpResponse:
        form = LoadOnNeuronForm(request.POST if ui.SURE in request.POST else None)
        if not form.is_valid():
            return ui.ask(request, ui.asked_of(self, request, queryset) | {"form": form})
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
        return _setting_field(db_field.name) or super().formfield_for_dbfield(
            db_field, request, **options
        )

    def home_context(self, obj: CatalogueModel) -> dict[str, Any]:
        period = metering_selectors.period_of(None, None, today=timezone.now().date())
        used = metering_selectors.usage_list(
            by=UsageGroup.ACCOUNT, period=period, where=UsageFilter(model=obj.name)
        )
        return model_context(obj) | {
            "users": [
                sums_row(row.name, row.sums, {"model": obj.name, "account": row.name})
                for row in used[:MAX_USERS]
            ],
            "price": price_text(obj.settings(), selectors.catalogue_by_name().get(obj.name)),
            "failures": recent_errors(model_name=obj.name),
            "requests_url": requests_url(model=obj.name),
        }

    def save_model(self, request: HttpRequest, obj: Any, form: ui.AnyForm, change: bool) -> None:
        super().save_model(request, obj, form, change)
        for remark in _remarks(obj):
            messages.warning(request, remark)

    def users_of(self, rows: Any) -> list[str]:
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
class AliasAdmin(ui.WrittenAdmin):
    form = ui.checked_form(lambda alias: services.alias_check(alias=alias))
    writes = ui.Writes("alias", services.alias_create, services.alias_update, services.alias_delete)
    list_display = ("name", "model_link")
    list_select_related = ("model",)
    search_fields = ("name", "model__name")

    model_link = ui.linked_column("model__name", model_url, "Model")


class UpstreamForm(ui.CheckedForm):
    key = forms.CharField(
        required=False,
        strip=True,
        widget=UnfoldAdminPasswordWidget(attrs={"autocomplete": "new-password"}),
        help_text="Stored encrypted and never shown. Empty: the one that it has.",
    )
    removes_key = forms.BooleanField(required=False, label="Remove its key")

    class Meta:
        model = Upstream
        fields = ("name", *CHANGEABLE)

    def check_row(self) -> None:
        services.upstream_check(upstream=self.instance)
        check_secret(self.cleaned_data["key"])

    @property
    def key_given(self) -> str | None:
        """``None``: the row keeps its key. Empty: the key is removed."""
        if self.cleaned_data["removes_key"]:
            return ""
        return self.cleaned_data["key"] or None


def _test(actor: Actor, upstream: Upstream) -> Outcome:
    try:
        probed = services.upstream_test(actor=actor, upstream=upstream)
    except FleetError as error:
        return Outcome(messages.ERROR, f"{upstream.name}: {error}")
    works = any(probe.works for probe in probed.probes)
    words = "; ".join(
        f"{probe.what} {TESTED_WORDS[probe.works]}" + (f" ({probe.detail})" if probe.detail else "")
        for probe in probed.probes
    )
    return Outcome(messages.SUCCESS if works else messages.ERROR, f"{upstream.name}: {words}")


def _requests(upstream: Upstream) -> SafeString | str:
    name = f"{UPSTREAM_PREFIX}{upstream.name}"
    return ui.linked(name, lambda neuron: requests_url(neuron=neuron), "Requests")


@admin.register(Upstream)
class UpstreamAdmin(ui.WrittenAdmin):
    operating = "fleet.change_upstream"
    form = UpstreamForm
    writes = ui.Writes(
        "upstream", services.upstream_create, services.upstream_update, services.upstream_delete
    )
    list_display = ("name", "url", "dialect", "key_label", "leaves_network", "model_count")
    list_filter = ("dialect", "leaves_network")
    search_fields = ("name", "url")
    actions = ("test_selected",)
    fieldsets = ui.sections(
        {
            "": ("name", "url", "dialect", *KEY_FIELDS, "leaves_network"),
            "Limits": LIMITS,
            "Network": ("proxy", "ca_file"),
        }
    )
    fixed = ("name",)
    recorded = ("key_label", "model_names", "discovered_at", "requests")

    key_label = ui.column("Key", lambda upstream: "set" if upstream.has_key else "none")
    model_count = ui.column(
        "Models", lambda one: str(len(one.known_models)) if one.discovered_at else "not tested yet"
    )
    model_names = ui.column(
        "Models", lambda upstream: ", ".join(str(model["id"]) for model in upstream.known_models)
    )
    requests = ui.column("Requests", _requests)
    test_selected = ui.each_row("Test", _test)

    def created(self, actor: Actor, form: Any) -> Upstream:
        values = {name: form.cleaned_data[name] for name in ("name", *CHANGEABLE)}
        return services.upstream_create(actor=actor, key=form.key_given or "", **values)

    def updated(self, actor: Actor, row: Upstream, form: Any) -> None:
        changed = [name for name in form.changed_data if name not in KEY_FIELDS]
        services.upstream_update(
            actor=actor, upstream=row, changed_fields=changed, key=form.key_given
        )

    def users_of(self, rows: Any) -> list[str]:
        return [
            f"{upstream.name}, which serves {model.name}"
            for upstream in rows
            for model in selectors.models_of_upstream(upstream.name)
        ]
