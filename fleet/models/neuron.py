"""Hosts: neurons, devices and replicas by their last heartbeats, and operators' decisions on them.
Those are by name: a neuron may be expected before it has reported."""

from __future__ import annotations

from django.db import models

from fleet.lifecycles import NeuronStatus, RecordedReplicaStatus
from fleet.live.desired_state import Admission, AdmissionPolicy, DesiredState
from fleet.models.catalogue import CatalogueModel, json_list, moment, not_empty, one_of, unique


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
    held_stages = json_list(
        "The stages that it holds of models whose engines are on other neurons."
    )
    is_leaving = models.BooleanField(default=False, help_text="It was asked to stop.")
    drained_at = moment("Since when nothing runs on it, where it is draining.")

    class Meta:
        ordering = ["name"]
        constraints = [
            one_of("status", NeuronStatus.values, "neuron_status_known"),
            not_empty("name", "neuron_name_not_empty"),
        ]

    def __str__(self) -> str:
        return self.name


class Device(models.Model):
    """A CUDA device, or the host's CPUs together."""

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
            unique("neuron", "kind", "index", name="device_unique_on_neuron"),
            one_of("kind", ["cpu", "cuda"], "device_kind_known"),
        ]

    def __str__(self) -> str:
        return f"{self.neuron.name} {self.kind}:{self.index}"


class Replica(models.Model):
    """``model_name`` is as reported; ``model`` is empty when the catalogue does not have it."""

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
    adapters = json_list("Names of the adapters that are loaded beside it.")
    last_used_at = moment()
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
            unique("neuron", "model_name", name="replica_unique_on_neuron"),
            one_of("status", RecordedReplicaStatus.values, "replica_status_known"),
        ]

    def __str__(self) -> str:
        return f"{self.model_name} on {self.neuron.name}"


class NeuronWish(models.Model):
    """The neuron may not have reported yet."""

    neuron_name = models.CharField(max_length=100, unique=True)
    admission = models.CharField(
        max_length=16,
        choices=[(word.value, word.value) for word in Admission],
        default=Admission.ADMITTED.value,
    )
    drain_wanted_at = moment("Since when it is to be drained; empty: it is not.")
    drain_ends_at = moment("When what still runs there is ended; empty: it finishes.")
    models_before_drain = json_list(
        "What was loaded there when its drain began, the last used first: it is loaded "
        "again after the drain."
    )

    class Meta:
        ordering = ["neuron_name"]
        constraints = [
            one_of("admission", [word.value for word in Admission], "neuron_wish_admission_known")
        ]

    def __str__(self) -> str:
        return self.neuron_name

    def desired_state(self) -> DesiredState:
        return DesiredState(
            drain=self.drain_wanted_at is not None,
            admission=Admission(self.admission),
        )


class FleetPolicy(models.Model):
    """One row, of key 1."""

    admission = models.CharField(
        max_length=16,
        choices=[
            (AdmissionPolicy.AUTOMATIC.value, "Automatic: whoever reaches Redis"),
            (AdmissionPolicy.CLICK.value, "By click: each new neuron waits for an operator"),
        ],
        default=AdmissionPolicy.AUTOMATIC.value,
        help_text="What neurons are that have not been seen before and were not invited.",
    )
    share_address = models.CharField(
        max_length=255, blank=True, help_text="Where invited hosts reach the private Redis."
    )
    share_is_tls = models.BooleanField(default=False)
    share_certificate = models.TextField(
        blank=True, help_text="PEM, where the certificate is signed by itself."
    )

    class Meta:
        verbose_name_plural = "fleet policy"
        constraints = [
            one_of(
                "admission",
                [word.value for word in AdmissionPolicy],
                "fleet_policy_admission_known",
            )
        ]

    def __str__(self) -> str:
        return f"admission: {self.admission}"


class Invitation(models.Model):
    """The control makes the user in Redis from it again wherever Redis has forgotten it."""

    neuron_name = models.CharField(max_length=63, unique=True)
    secret_sha256 = models.CharField(
        max_length=64, help_text="Of the user's password, 256 random bits, which is shown once."
    )
    invited_by = models.CharField(max_length=200)
    invited_at = models.DateTimeField(auto_now_add=True)
    cut_off_at = moment("When it was shut out for what it wrote. Inviting it again lets it in.")
    cut_off_reason = models.CharField(max_length=300, blank=True, default="", db_default="")

    class Meta:
        ordering = ["neuron_name"]

    def __str__(self) -> str:
        return self.neuron_name


class ControlTerm(models.Model):
    """One row, of key 1. Only ``fleet.leadership`` writes it."""

    number = models.PositiveBigIntegerField(default=0)
    control_id = models.CharField(max_length=255, blank=True)

    def __str__(self) -> str:
        return f"term {self.number}: {self.control_id}"
