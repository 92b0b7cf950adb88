"""Neurons (GPU hosts) and their devices, as their heartbeats last described them."""

from __future__ import annotations

from django.db import models

from fleet.lifecycles import NeuronStatus


class Neuron(models.Model):
    """Written by ``heartbeat_record`` only; a host that joins appears here by itself."""

    name = models.CharField(max_length=100, unique=True)
    status = models.CharField(
        max_length=16, choices=NeuronStatus.choices, default=NeuronStatus.ONLINE
    )
    status_since = models.DateTimeField()
    epoch = models.CharField(max_length=64, help_text="New each time the neuron process starts.")
    version = models.CharField(max_length=64, blank=True)
    started_at = models.DateTimeField()
    last_seen_at = models.DateTimeField(help_text="Exact to about ten seconds.")
    hostname = models.CharField(max_length=255, blank=True)
    operating_system = models.CharField(max_length=255, blank=True)
    num_cores = models.PositiveIntegerField(default=0)
    total_memory_bytes = models.PositiveBigIntegerField(default=0)
    free_memory_bytes = models.PositiveBigIntegerField(default=0)
    problems = models.JSONField(default=list, blank=True)
    held_stages = models.JSONField(
        default=list,
        db_default=models.Value([], models.JSONField()),
        blank=True,
        help_text="The stages that it holds of models whose engines are on other neurons.",
    )
    is_leaving = models.BooleanField(default=False, help_text="It was asked to stop.")
    drained_at = models.DateTimeField(
        null=True, blank=True, help_text="Since when nothing runs on it, where it is draining."
    )

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(status__in=NeuronStatus.values), name="neuron_status_known"
            ),
            models.CheckConstraint(condition=~models.Q(name=""), name="neuron_name_not_empty"),
        ]

    def __str__(self) -> str:
        return self.name


class Device(models.Model):
    """Something a model can be loaded on: a CUDA device, or the host's CPUs together."""

    neuron = models.ForeignKey(Neuron, on_delete=models.CASCADE, related_name="devices")
    kind = models.CharField(max_length=8, choices=[("cpu", "CPU"), ("cuda", "CUDA")])
    index = models.PositiveSmallIntegerField()
    name = models.CharField(max_length=255)
    total_memory_bytes = models.PositiveBigIntegerField()
    installed_memory_bytes = models.PositiveBigIntegerField(
        null=True,
        blank=True,
        help_text="All of the device's memory, where HELEXA_MEMORY_LIMIT lets less of it be used.",
    )
    free_memory_bytes = models.PositiveBigIntegerField()
    compute_capability = models.CharField(max_length=16, blank=True)
    driver = models.CharField(max_length=64, blank=True)

    class Meta:
        ordering = ["neuron__name", "kind", "index"]
        constraints = [
            models.UniqueConstraint(
                fields=["neuron", "kind", "index"], name="device_unique_on_neuron"
            ),
            models.CheckConstraint(
                condition=models.Q(kind__in=["cpu", "cuda"]), name="device_kind_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.neuron.name} {self.kind}:{self.index}"
