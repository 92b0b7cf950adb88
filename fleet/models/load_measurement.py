"""What the last load of a catalogue model took on each neuron."""

from __future__ import annotations

from django.db import models

from fleet.live.measurements import DeviceKind, MeasuredLoad
from fleet.models.catalogue import CatalogueModel
from fleet.models.neuron import Neuron
from inference.protocol.load import PrefillSpeed


class LoadMeasurement(models.Model):
    """The last load of one model on one neuron. Written by
    ``fleet.services.jobs.load_measurements``; deleted when the model's files or their form change,
    because it no longer holds then."""

    model = models.ForeignKey(
        CatalogueModel, on_delete=models.CASCADE, related_name="load_measurements"
    )
    neuron = models.ForeignKey(Neuron, on_delete=models.CASCADE, related_name="load_measurements")
    device_kind = models.CharField(max_length=8, choices=[("cpu", "CPU"), ("cuda", "CUDA")])
    load_bytes = models.PositiveBigIntegerField(help_text="All but KV.")
    process_bytes = models.PositiveBigIntegerField(help_text="Of the engine process itself.")
    kv_token_bytes = models.PositiveBigIntegerField()
    memory_correction_bytes = models.BigIntegerField(
        help_text="What the estimate from the files fell short by; below 0 where it was too high."
    )
    load_s = models.FloatField(
        null=True, help_text="Seconds from its engine's start until it was loaded."
    )
    prefill_token_s = models.FloatField(
        null=True, help_text="Average over requests; empty where there were none yet."
    )
    prefill_growth_s = models.FloatField(null=True)
    prefill_window_tokens = models.PositiveIntegerField(null=True)
    context_tokens = models.PositiveIntegerField(
        null=True, help_text="The limit that was enforced on prompt plus output."
    )
    capabilities = models.JSONField(null=True, help_text="What it could do; empty: not recorded.")
    measured_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["model__name", "neuron__name"]
        constraints = [
            models.UniqueConstraint(
                fields=["model", "neuron"], name="load_measurement_unique_on_neuron"
            ),
            models.CheckConstraint(
                condition=models.Q(device_kind__in=["cpu", "cuda"]),
                name="load_measurement_device_kind_known",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.model.name} on {self.neuron.name}"

    @property
    def prefill_speed(self) -> PrefillSpeed | None:
        if self.prefill_token_s is None or self.prefill_growth_s is None:
            return None
        return PrefillSpeed(
            token_s=self.prefill_token_s,
            growth_s=self.prefill_growth_s,
            window_tokens=self.prefill_window_tokens,
        )

    def measured_load(self) -> MeasuredLoad:
        """Returns the row as a ``MeasuredLoad``; reads the neuron (prefetch it when building
        many)."""
        kind: DeviceKind = "cuda" if self.device_kind == "cuda" else "cpu"
        return MeasuredLoad(
            neuron=self.neuron.name,
            device_kind=kind,
            load_bytes=self.load_bytes,
            process_bytes=self.process_bytes,
            kv_token_bytes=self.kv_token_bytes,
            memory_correction_bytes=self.memory_correction_bytes,
            load_s=self.load_s,
            prefill_speed=self.prefill_speed,
            context_tokens=self.context_tokens,
            capabilities=None if self.capabilities is None else tuple(self.capabilities),
        )
