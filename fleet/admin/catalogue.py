"""Catalogue models and aliases: the forms, and the Load and Unload actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.defaultfilters import filesizeformat
from django.template.response import TemplateResponse
from django.urls import reverse
from unfold.widgets import UnfoldAdminSelectWidget

from fleet import services
from fleet.admin.loading import actor_of, load_on, load_placed, tell, unload_everywhere
from fleet.admin.unfold_types import UnfoldAdmin, action, display
from fleet.admin.usd_field import UsdField
from fleet.errors import CatalogueValueError
from fleet.lifecycles import NeuronStatus
from fleet.models import Alias, CatalogueModel, Neuron

if TYPE_CHECKING:
    AnyForm = forms.ModelForm[Any]
else:
    AnyForm = forms.ModelForm


class CheckedForm(AnyForm):
    """A row of the catalogue, by the rules of the services."""

    def check_row(self) -> None:
        """Raises ``CatalogueValueError``."""
        raise NotImplementedError

    def _post_clean(self) -> None:
        """Once Django has filled the row: each error at its field."""
        super()._post_clean()  # type: ignore[misc]
        if self.errors:
            return
        try:
            self.check_row()
        except CatalogueValueError as error:
            self.add_error(error.field, str(error))


class CatalogueModelForm(CheckedForm):
    input_price_micro_usd = UsdField(
        label="Input price",
        help_text="USD per million prompt tokens. 0: free. Empty: the model is not priced.",
    )
    cached_input_price_micro_usd = UsdField(
        label="Cached input price",
        help_text="USD per million prompt tokens that the prefix cache held. Empty: the input "
        "price.",
    )
    output_price_micro_usd = UsdField(
        label="Output price",
        help_text="USD per million completion tokens. 0: free. Empty: the model is not priced.",
    )

    class Meta:
        model = CatalogueModel
        fields = "__all__"

    def check_row(self) -> None:
        services.catalogue_model_check(model=self.instance)


class AliasForm(CheckedForm):
    class Meta:
        model = Alias
        fields = "__all__"

    def check_row(self) -> None:
        services.alias_check(alias=self.instance)


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
    search_fields = ("name", "source", "description")
    actions = ("load_selected", "load_selected_on_neuron", "unload_selected")
    fieldsets = (
        (None, {"fields": ("name", "description", "enabled", "pinned")}),
        ("Files", {"fields": ("source", "file", "revision", "sha256")}),
        ("Weights", {"fields": ("dtype", "quantization")}),
        (
            "Limits",
            {
                "fields": (
                    "max_context_tokens",
                    "max_output_tokens",
                    "max_prefill_s",
                    "kv_dtype",
                    "kv_memory_bytes",
                )
            },
        ),
        (
            "Prices",
            {
                "fields": (
                    "input_price_micro_usd",
                    "cached_input_price_micro_usd",
                    "output_price_micro_usd",
                )
            },
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).prefetch_related("aliases", "replicas__neuron")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """Clients, neurons and jobs know a model by its name, so it stays."""
        return ("name",) if obj is not None else ()

    def has_operate_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("fleet.change_cataloguemodel")

    def save_model(self, request: HttpRequest, obj: Any, form: AnyForm, change: bool) -> None:
        if change:
            services.catalogue_model_update(
                actor=actor_of(request), model=obj, changed_fields=form.changed_data
            )
            return
        created = services.catalogue_model_create(actor=actor_of(request), **form.cleaned_data)
        obj.pk = created.pk
        obj.created_at = created.created_at

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        services.catalogue_model_delete(actor=actor_of(request), model=obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        for model in queryset:
            services.catalogue_model_delete(actor=actor_of(request), model=model)

    @display(description="Loaded on")
    def loaded_on(self, model: CatalogueModel) -> str:
        return ", ".join(
            f"{replica.neuron.name} ({replica.status})" for replica in model.replicas.all()
        )

    @display(description="Weights", ordering="weight_bytes")
    def weight_size(self, model: CatalogueModel) -> str:
        return "" if model.weight_bytes is None else filesizeformat(model.weight_bytes)

    @display(description="Aliases")
    def alias_names(self, model: CatalogueModel) -> str:
        return ", ".join(alias.name for alias in model.aliases.all())

    @action(description="Load where it fits", permissions=["operate"])
    def load_selected(
        self, request: HttpRequest, queryset: QuerySet[CatalogueModel]
    ) -> HttpResponse:
        for model in queryset:
            tell(request, load_placed(model=model, actor=actor_of(request)))
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
            tell(request, outcome)
        return HttpResponseRedirect(reverse("admin:fleet_loadjob_changelist"))

    @action(description="Unload", permissions=["operate"])
    def unload_selected(self, request: HttpRequest, queryset: QuerySet[CatalogueModel]) -> None:
        for model in queryset:
            for outcome in unload_everywhere(actor=actor_of(request), model=model):
                tell(request, outcome)

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
