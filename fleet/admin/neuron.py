"""Neurons and their devices."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.timesince import timesince

from fleet.admin.loading import actor_of, on_host, show_outcome
from fleet.admin.replica_report import recent_errors
from fleet.admin.unfold_types import (
    HomePageAdmin,
    ReportedAdmin,
    action,
    asking_first,
    display,
    linked_column,
    linked_list,
)
from fleet.dashboard.board import neuron_context
from fleet.dashboard.links import model_url, neuron_url
from fleet.lifecycles import NeuronStatus
from fleet.management.sizes import size_text, total_text
from fleet.models import Device, Neuron
from metering.links import requests_url

NEURON_LABELS = {
    NeuronStatus.ONLINE.label: "success",
    NeuronStatus.AWAY.label: "danger",
    NeuronStatus.DRAINING.label: "warning",
    NeuronStatus.REFUSED.label: "default",
}


@admin.register(Neuron)
class NeuronAdmin(HomePageAdmin, ReportedAdmin):
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
    fields = (
        "name",
        "status_label",
        "status_since",
        "drained_at",
        "last_seen_at",
        "started_at",
        "version",
        "hostname",
        "operating_system",
        "cores",
        "total_memory",
        "free_memory",
        "device_names",
        "replica_names",
        "held_stage_list",
        "problem_list",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).prefetch_related("devices", "replicas")

    def home_context(self, obj: Neuron) -> dict[str, Any]:
        return neuron_context(obj) | {
            "failures": recent_errors(neuron=obj),
            "requests_url": requests_url(neuron=obj.name),
        }

    def has_change_neuron_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("fleet.change_neuron")

    def has_remove_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("fleet.delete_neuron")

    @action(description="Drain: place nothing new there", permissions=["change_neuron"])
    @asking_first
    def drain(self, request: HttpRequest, queryset: QuerySet[Neuron]) -> None:
        _each("drain", request, queryset)

    @action(description="Resume after a drain", permissions=["change_neuron"])
    def resume(self, request: HttpRequest, queryset: QuerySet[Neuron]) -> None:
        _each("resume", request, queryset)

    @action(description="Admit", permissions=["change_neuron"])
    def admit(self, request: HttpRequest, queryset: QuerySet[Neuron]) -> None:
        _each("admit", request, queryset)

    @action(description="Refuse: use it for nothing", permissions=["change_neuron"])
    @asking_first
    def refuse(self, request: HttpRequest, queryset: QuerySet[Neuron]) -> None:
        _each("refuse", request, queryset)

    @action(description="Remove what is away", permissions=["remove"])
    @asking_first
    def remove(self, request: HttpRequest, queryset: QuerySet[Neuron]) -> None:
        _each("remove", request, queryset)

    @display(description="Status", ordering="status", label=NEURON_LABELS)
    def status_label(self, neuron: Neuron) -> str:
        return neuron.get_status_display()

    @display(description="Last seen", ordering="last_seen_at")
    def last_seen(self, neuron: Neuron) -> str:
        if neuron.status != NeuronStatus.AWAY:
            return "now"
        return f"{timesince(neuron.last_seen_at)} ago"

    @display(description="Devices")
    def device_names(self, neuron: Neuron) -> str:
        return ", ".join(
            f"{device.kind}:{device.index} {device.name} ({_memory_words(neuron, device)})"
            for device in neuron.devices.all()
        )

    @display(description="Free memory", ordering="free_memory_bytes")
    def free_memory(self, neuron: Neuron) -> str:
        return "" if neuron.status == NeuronStatus.AWAY else size_text(neuron.free_memory_bytes)

    @display(description="Processor cores")
    def cores(self, neuron: Neuron) -> int:
        return neuron.num_cores

    @display(description="Total memory")
    def total_memory(self, neuron: Neuron) -> str:
        return size_text(neuron.total_memory_bytes)

    @display(description="Replicas")
    def replica_names(self, neuron: Neuron) -> SafeString:
        replicas = neuron.replicas.all()
        return linked_list(((one.model_name, one.status) for one in replicas), model_url)

    @display(description="Stages of other hosts' models")
    def held_stage_list(self, neuron: Neuron) -> SafeString:
        return linked_list(
            ((one["model"], _stage_words(one)) for one in neuron.held_stages), model_url
        )

    @display(description="Problems")
    def problem_list(self, neuron: Neuron) -> str:
        return "; ".join(neuron.problems)


def _each(verb: str, request: HttpRequest, queryset: QuerySet[Neuron]) -> None:
    for name in list(queryset.values_list("name", flat=True)):
        for outcome in on_host(verb, actor_of(request), name):
            show_outcome(request, outcome)


def _stage_words(stage: dict[str, Any]) -> str:
    layers = f"layers {stage['first_layer']} to {stage['last_layer'] - 1} on {stage['device']}"
    memory = f", {size_text(stage['memory_bytes'])}" if stage["memory_bytes"] else ""
    why = f": {stage['failure']}" if stage["failure"] else ""
    return f"{layers} for {stage['engine_neuron']}{memory}, {stage['status']}{why}"


def _memory_words(neuron: Neuron, device: Device) -> str:
    total = total_text(device.total_memory_bytes, device.installed_memory_bytes)
    if neuron.status == NeuronStatus.AWAY:
        return total
    return f"{size_text(device.free_memory_bytes)} of {total} free"


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
    list_select_related = ("neuron",)
    list_filter = ("kind", "neuron", "neuron__status")
    fields = (
        "neuron",
        "kind",
        "index",
        "name",
        "total_memory",
        "free_memory",
        "compute_capability",
        "driver",
    )

    neuron_link = linked_column("neuron__name", neuron_url, "Neuron")

    @display(description="Device", ordering="kind")
    def kind_and_index(self, device: Device) -> str:
        return f"{device.kind}:{device.index}"

    @display(description="Free memory", ordering="free_memory_bytes")
    def free_memory(self, device: Device) -> str:
        is_away = device.neuron.status == NeuronStatus.AWAY
        return "" if is_away else size_text(device.free_memory_bytes)

    @display(description="Total memory", ordering="total_memory_bytes")
    def total_memory(self, device: Device) -> str:
        return total_text(device.total_memory_bytes, device.installed_memory_bytes)
