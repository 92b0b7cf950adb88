"""Replicas: models loaded on neurons, as the neurons last described them."""

from __future__ import annotations

from django.db import models

from fleet.lifecycles import RecordedReplicaStatus
from fleet.models.catalogue import CatalogueModel
from fleet.models.neuron import Neuron


class Replica(models.Model):
    """A row stands while its neuron reports the replica. ``model_name`` is the neuron's word;
    ``model`` is empty when the catalogue does not (or no longer) have it."""

    neuron = models.ForeignKey(Neuron, on_delete=models.CASCADE, related_name="replicas")
    model_name = models.CharField(max_length=100)
    model = models.ForeignKey(
        CatalogueModel, null=True, blank=True, on_delete=models.SET_NULL, related_name="replicas"
    )
    job_id = models.CharField(max_length=64, help_text="The load job that loaded it.")
    spec_digest = models.CharField(
        max_length=64, blank=True, help_text="Of the load spec that it was loaded by."
    )
    devices = models.JSONField(default=list, blank=True, help_text="Where on the neuron.")
    memory_bytes = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="What it takes on those devices, all of it."
    )
    host_memory_bytes = models.PositiveBigIntegerField(
        default=0,
        db_default=0,
        help_text="What its weights take of the host's memory while it sleeps.",
    )
    adapters = models.JSONField(
        default=list,
        db_default=models.Value([], models.JSONField()),
        blank=True,
        help_text="Names of the adapters that are loaded beside it.",
    )
    last_used_at = models.DateTimeField(null=True, blank=True)
    status = models.CharField(max_length=16, choices=RecordedReplicaStatus.choices)
    status_since = models.DateTimeField()
    num_restarts = models.PositiveIntegerField(default=0)
    in_flight = models.PositiveIntegerField(default=0)
    queue_depth = models.PositiveIntegerField(default=0)
    kv_blocks_used = models.PositiveIntegerField(default=0)
    kv_blocks_total = models.PositiveIntegerField(default=0)
    decode_tokens_per_s = models.FloatField(default=0.0)
    num_drafted_tokens = models.PositiveBigIntegerField(
        default=0, db_default=0, help_text="Tokens that its engine guessed and verified."
    )
    num_accepted_drafts = models.PositiveBigIntegerField(
        default=0, db_default=0, help_text="Of those, the ones that were right."
    )
    report = models.JSONField(
        null=True, blank=True, help_text="The load report: what was loaded and what it took."
    )
    failure_code = models.CharField(max_length=64, blank=True)
    failure_message = models.TextField(blank=True)

    class Meta:
        ordering = ["neuron__name", "model_name"]
        constraints = [
            models.UniqueConstraint(
                fields=["neuron", "model_name"], name="replica_unique_on_neuron"
            ),
            models.CheckConstraint(
                condition=models.Q(status__in=RecordedReplicaStatus.values),
                name="replica_status_known",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.model_name} on {self.neuron.name}"
