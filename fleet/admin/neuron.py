"""Neurons and their devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.timesince import timesince

from fleet import services
from fleet.admin.loading import actor_of
from fleet.admin.reported import ReportedAdmin
from fleet.admin.unfold_types import action, display
from fleet.errors import FleetError
from fleet.lifecycles import NeuronStatus
from fleet.management.sizes import size_text, total_text
from fleet.models import Device, Neuron

NEURON_LABELS = {
    NeuronStatus.ONLINE.label: "success",
    NeuronStatus.AWAY.label: "danger",
    NeuronStatus.DRAINING.label: "warning",
    NeuronStatus.REFUSED.label: "default",
}


@admin.register(Neuron)
class NeuronAdmin(ReportedAdmin):
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
        "num_cores",
        "total_memory",
        "free_memory",
        "device_names",
        "replica_names",
        "problem_list",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).prefetch_related("devices", "replicas")

    def has_change_neuron_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("fleet.change_neuron")

    def has_remove_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("fleet.delete_neuron")

    @action(description="Drain: place nothing new there", permissions=["change_neuron"])
    def drain(self, request: HttpRequest, queryset: QuerySet[Neuron]) -> None:
        self._each(request, queryset, services.neuron_drain, "is being drained")

    @action(description="Resume after a drain", permissions=["change_neuron"])
    def resume(self, request: HttpRequest, queryset: QuerySet[Neuron]) -> None:
        self._each(request, queryset, services.neuron_resume, "takes models and requests again")

    @action(description="Admit", permissions=["change_neuron"])
    def admit(self, request: HttpRequest, queryset: QuerySet[Neuron]) -> None:
        self._each(request, queryset, services.neuron_admit, "is admitted")

    @action(description="Refuse: use it for nothing", permissions=["change_neuron"])
    def refuse(self, request: HttpRequest, queryset: QuerySet[Neuron]) -> None:
        self._each(request, queryset, services.neuron_refuse, "is refused")

    @action(description="Remove what is away", permissions=["remove"])
    def remove(self, request: HttpRequest, queryset: QuerySet[Neuron]) -> None:
        self._each(request, queryset, services.neuron_remove, "is forgotten")

    def _each(
        self,
        request: HttpRequest,
        queryset: QuerySet[Neuron],
        service: Callable[..., object],
        came_of_it: str,
    ) -> None:
        for name in list(queryset.values_list("name", flat=True)):
            try:
                service(actor=actor_of(request), neuron_name=name)
            except FleetError as error:
                messages.error(request, str(error))
            else:
                messages.success(request, f"{name} {came_of_it}")

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
            f"{device.kind}:{device.index} {device.name} "
            f"({size_text(device.free_memory_bytes)} of "
            f"{total_text(device.total_memory_bytes, device.installed_memory_bytes)} free)"
            for device in neuron.devices.all()
        )

    @display(description="Free memory", ordering="free_memory_bytes")
    def free_memory(self, neuron: Neuron) -> str:
        return size_text(neuron.free_memory_bytes)

    @display(description="Total memory")
    def total_memory(self, neuron: Neuron) -> str:
        return size_text(neuron.total_memory_bytes)

    @display(description="Replicas")
    def replica_names(self, neuron: Neuron) -> str:
        return ", ".join(
            f"{replica.model_name} ({replica.status})" for replica in neuron.replicas.all()
        )

    @display(description="Problems")
    def problem_list(self, neuron: Neuron) -> str:
        return "; ".join(neuron.problems)


@admin.register(Device)
class DeviceAdmin(ReportedAdmin):
    list_display = (
        "__str__",
        "name",
        "free_memory",
        "total_memory",
        "compute_capability",
        "driver",
    )
    list_select_related = ("neuron",)
    list_filter = ("kind", "neuron")
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

    @display(description="Free memory", ordering="free_memory_bytes")
    def free_memory(self, device: Device) -> str:
        return size_text(device.free_memory_bytes)

    @display(description="Total memory", ordering="total_memory_bytes")
    def total_memory(self, device: Device) -> str:
        return total_text(device.total_memory_bytes, device.installed_memory_bytes)
