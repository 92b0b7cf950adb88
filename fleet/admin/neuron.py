"""Neurons and their devices."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.timesince import timesince

from fleet.admin.loading import Outcome, on_host
from fleet.admin.replica_report import recent_errors
from fleet.admin.unfold_types import (
    ReportedAdmin,
    column,
    each_row,
    linked_column,
    linked_list,
    sections,
)
from fleet.dashboard.board import neuron_context
from fleet.dashboard.links import model_url, neuron_url
from fleet.lifecycles import NeuronStatus
from fleet.management.sizes import size_text, total_text
from fleet.models import Device, Neuron
from metering.actor import Actor
from metering.links import requests_url

STATUS_LABELS = {
    NeuronStatus.ONLINE.label: "success",
    NeuronStatus.AWAY.label: "danger",
    NeuronStatus.DRAINING.label: "warning",
    NeuronStatus.REFUSED.label: "default",
}


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
    return linked_list(((one.model_name, one.status) for one in neuron.replicas.all()), model_url)


def _held_stages(neuron: Neuron) -> SafeString:
    return linked_list(((one["model"], _stage_words(one)) for one in neuron.held_stages), model_url)


def _stage_words(stage: dict[str, Any]) -> str:
    layers = f"layers {stage['first_layer']} to {stage['last_layer'] - 1} on {stage['device']}"
    memory = f", {size_text(stage['memory_bytes'])}" if stage["memory_bytes"] else ""
    why = f": {stage['failure']}" if stage["failure"] else ""
    return f"{layers} for {stage['engine_neuron']}{memory}, {stage['status']}{why}"


def _host_action(verb: str, description: str, **options: Any) -> Any:
    def act(actor: Actor, neuron: Neuron) -> list[Outcome]:
        return on_host(verb, actor, neuron.name)

    return each_row(description, act, **options)


@admin.register(Neuron)
class NeuronAdmin(ReportedAdmin):
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
    fieldsets = sections(
        {
            "": ("name", "status_label", "status_since", "drained_at", "problem_list"),
            "Process": ("last_seen_at", "started_at", "version"),
            "Host": ("hostname", "operating_system", "cores", "total_memory", "free_memory"),
            "Models": ("device_names", "replica_names", "held_stage_list"),
        }
    )

    status_label = column(
        "Status", lambda neuron: neuron.get_status_display(), ordering="status", label=STATUS_LABELS
    )
    last_seen = column("Last seen", _last_seen, ordering="last_seen_at")
    device_names = column("Devices", _device_names)
    free_memory = column("Free memory", _free_memory, ordering="free_memory_bytes")
    cores = column("Processor cores", lambda neuron: neuron.num_cores)
    total_memory = column("Total memory", lambda neuron: size_text(neuron.total_memory_bytes))
    replica_names = column("Replicas", _replica_names)
    held_stage_list = column("Stages of other hosts' models", _held_stages)
    problem_list = column("Problems", lambda neuron: "; ".join(neuron.problems))

    drain = _host_action("drain", "Drain: place nothing new there", asks=True)
    resume = _host_action("resume", "Resume after a drain")
    admit = _host_action("admit", "Admit")
    refuse = _host_action("refuse", "Refuse: use it for nothing", asks=True)
    remove = _host_action("remove", "Remove what is away", permission="remove", asks=True)

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
class DeviceAdmin(ReportedAdmin):
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

    neuron_link = linked_column("neuron__name", neuron_url, "Neuron")
    kind_and_index = column("Device", lambda one: f"{one.kind}:{one.index}", ordering="kind")
    free_memory = column(
        "Free memory",
        lambda one: "" if _is_away(one.neuron) else size_text(one.free_memory_bytes),
        ordering="free_memory_bytes",
    )
    total_memory = column("Total memory", _total_memory, ordering="total_memory_bytes")
