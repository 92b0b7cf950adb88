"""Hosts: neurons, devices, invitations and the admission policy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse_lazy
from django.utils.safestring import SafeString
from django.utils.text import format_lazy
from django.utils.timesince import timesince
from unfold.widgets import UnfoldAdminTextInputWidget

from fleet import services
from fleet.admin import unfold_types as ui
from fleet.admin.replica import recent_errors
from fleet.admin.unfold_types import Outcome, actor_of
from fleet.dashboard.board import neuron_context
from fleet.dashboard.links import model_url, neuron_url
from fleet.errors import FleetError
from fleet.lifecycles import NeuronStatus
from fleet.live.desired_state import AdmissionPolicy
from fleet.models import Device, FleetPolicy, Invitation, Neuron
from fleet.services.invitations import invitation_check
from fleet.words import size_text, total_text
from helexa_site.program import installation, neuron_program
from inference.protocol.keys import NEURON_NAME
from metering.audit import Actor
from metering.pages import requests_url

ON_HOST: dict[str, tuple[Callable[..., object], str]] = {
    "drain": (services.neuron_drain, "is being drained"),
    "resume": (services.neuron_resume, "takes models and requests again"),
    "admit": (services.neuron_admit, "is admitted"),
    "refuse": (services.neuron_refuse, "is refused"),
    "remove": (services.neuron_remove, "is forgotten"),
}


def on_host(verb: str, actor: Actor, neuron_name: str) -> list[Outcome]:
    service, came_of_it = ON_HOST[verb]
    try:
        service(actor=actor, neuron_name=neuron_name)
    except FleetError as error:
        return [Outcome(messages.ERROR, str(error))]
    return [Outcome(messages.SUCCESS, f"{neuron_name} {came_of_it}")]


def _is_away(neuron: Neuron) -> bool:
    return neuron.status == NeuronStatus.AWAY


def _last_seen(neuron: Neuron) -> str:
    return f"{timesince(neuron.last_seen_at)} ago" if _is_away(neuron) else "now"


def _free_memory(neuron: Neuron) -> str:
    return "" if _is_away(neuron) else size_text(neuron.free_memory_bytes)


def _device_names(neuron: Neuron) -> str:
    return ", ".join(
        f"{device.kind}:{device.index} {device.name} ({_memory_words(neuron, device)})"
        for device in neuron.devices.all()
    )


def _memory_words(neuron: Neuron, device: Device) -> str:
    total = _total_memory(device)
    return total if _is_away(neuron) else f"{size_text(device.free_memory_bytes)} of {total} free"


def _total_memory(device: Device) -> str:
    return total_text(device.total_memory_bytes, device.installed_memory_bytes)


def _replica_names(neuron: Neuron) -> SafeString:
    return ui.linked_list(
        ((one.model_name, one.status) for one in neuron.replicas.all()), model_url
    )


def _held_stages(neuron: Neuron) -> SafeString:
    return ui.linked_list(
        ((one["model"], _stage_words(one)) for one in neuron.held_stages), model_url
    )


def _stage_words(stage: dict[str, Any]) -> str:
    layers = f"layers {stage['first_layer']} to {stage['last_layer'] - 1} on {stage['device']}"
    memory = f", {size_text(stage['memory_bytes'])}" if stage["memory_bytes"] else ""
    why = f": {stage['failure']}" if stage["failure"] else ""
    return f"{layers} for {stage['engine_neuron']}{memory}, {stage['status']}{why}"


def _on(verb: str, actor: Actor, neuron: Neuron) -> list[Outcome]:
    return on_host(verb, actor, neuron.name)


@admin.register(Neuron)
class NeuronAdmin(ui.ReportedAdmin):
    operating = "fleet.change_neuron"
    list_display = (
        "name",
        "status_label",
        "last_seen",
        "device_names",
        "free_memory",
        "replica_names",
        "problem_list",
    )
    list_filter = ("status",)
    search_fields = ("name", "hostname")
    change_form_outer_before_template = "fleet/neuron_page.html"
    actions = ("drain", "resume", "admit", "refuse", "remove")
    fieldsets = ui.sections(
        {
            "": ("name", "status_label", "status_since", "drained_at", "problem_list"),
            "Process": ("last_seen_at", "started_at", "version"),
            "Host": ("hostname", "operating_system", "cores", "total_memory", "free_memory"),
            "Models": ("device_names", "replica_names", "held_stage_list"),
        }
    )

    status_label = ui.status_column()
    last_seen = ui.column("Last seen", _last_seen, ordering="last_seen_at")
    device_names = ui.column("Devices", _device_names)
    free_memory = ui.column("Free memory", _free_memory, ordering="free_memory_bytes")
    cores = ui.column("Processor cores", lambda neuron: neuron.num_cores)
    total_memory = ui.column("Total memory", lambda neuron: size_text(neuron.total_memory_bytes))
    replica_names = ui.column("Replicas", _replica_names)
    held_stage_list = ui.column("Stages of other hosts' models", _held_stages)
    problem_list = ui.column("Problems", lambda neuron: "; ".join(neuron.problems))

    drain = ui.each_row("Drain: place nothing new there", partial(_on, "drain"), asks=True)
    resume = ui.each_row("Resume after a drain", partial(_on, "resume"))
    admit = ui.each_row("Admit", partial(_on, "admit"))
    refuse = ui.each_row("Refuse: use it for nothing", partial(_on, "refuse"), asks=True)
    remove = ui.each_row(
        "Remove what is away", partial(_on, "remove"), permission="remove", asks=True
    )

    def has_remove_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("fleet.delete_neuron")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).prefetch_related("devices", "replicas")

    def home_context(self, obj: Neuron) -> dict[str, Any]:
        return neuron_context(obj) | {
            "failures": recent_errors(neuron=obj),
            "requests_url": requests_url(neuron=obj.name),
        }


@admin.register(Device)
class DeviceAdmin(ui.ReportedAdmin):
    list_display = (
        "kind_and_index",
        "neuron_link",
        "name",
        "free_memory",
        "total_memory",
        "compute_capability",
        "driver",
    )
    fields = list_display
    list_select_related = ("neuron",)
    list_filter = ("kind", "neuron", "neuron__status")

    neuron_link = ui.linked_column("neuron__name", neuron_url, "Neuron")
    kind_and_index = ui.column("Device", lambda one: f"{one.kind}:{one.index}", ordering="kind")
    free_memory = ui.column(
        "Free memory",
        lambda one: "" if _is_away(one.neuron) else size_text(one.free_memory_bytes),
        ordering="free_memory_bytes",
    )
    total_memory = ui.column("Total memory", _total_memory, ordering="total_memory_bytes")


NAME_RULE = "Letters, digits, '.', '_' and '-', 63 at most, and a letter or digit first"


class InvitationForm(ui.AnyForm):
    neuron_name = forms.RegexField(
        rf"\A{NEURON_NAME.pattern}\Z",
        widget=UnfoldAdminTextInputWidget,
        help_text="How the host is called here.",
        error_messages={"invalid": NAME_RULE},
    )
    address = ui.text_field(
        format_lazy(
            "HOST:PORT at which that host reaches Redis; empty: as serve --share or "
            '<a href="{sharing}">Sharing</a> has it.',
            sharing=reverse_lazy("sharing"),
        ),
        max_length=255,
    )

    class Meta:
        model = Invitation
        fields = ("neuron_name",)

    def clean_address(self) -> str | None:
        address = self.cleaned_data["address"] or None
        if problem := invitation_check(address=address):
            raise ValidationError(problem)
        return address


@admin.register(Invitation)
class InvitationAdmin(ui.WrittenAdmin):
    form = InvitationForm
    list_display = ("neuron_name", "invited_at", "invited_by")
    search_fields = ("neuron_name",)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("neuron_name", "address") if obj is None else self.list_display

    def save_model(self, request: HttpRequest, obj: Any, form: ui.AnyForm, change: bool) -> None:
        obj.shown_once = services.neuron_invite(actor=actor_of(request), **form.cleaned_data)
        obj.pk = Invitation.objects.get(neuron_name=obj.neuron_name).pk

    def response_add(
        self, request: HttpRequest, obj: Any, post_url_continue: str | None = None
    ) -> HttpResponse:
        line = f"{neuron_program()} neuron --join {obj.shown_once}"
        return ui.show_once(
            self,
            request,
            "fleet/invitation_created.html",
            f"An invitation for {obj.neuron_name}",
            invitation=obj,
            where=installation().value,
            shown_once=line,
        )

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        services.neuron_revoke(actor=actor_of(request), neuron_name=obj.neuron_name)


def _share(policy: FleetPolicy) -> str:
    return f"{policy.share_address} by TLS" if policy.share_is_tls else policy.share_address


@admin.register(FleetPolicy)
class FleetPolicyAdmin(ui.UnfoldAdmin):
    """One row. ``serve --share`` sets the address at which invited hosts find Redis."""

    list_display = ("admission", "share")
    fields = ("admission",)

    share = ui.column("Address for invited hosts", _share)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return super().has_add_permission(request) and not FleetPolicy.objects.exists()

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Any, form: ui.AnyForm, change: bool) -> None:
        policy = AdmissionPolicy(form.cleaned_data["admission"])
        services.admission_policy_set(actor=actor_of(request), policy=policy)
        obj.pk = 1
