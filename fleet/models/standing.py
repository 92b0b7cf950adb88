"""The state that the operator wants of neurons: stored by name, apart from the neurons' reports."""

from __future__ import annotations

from django.db import models

from fleet.live.desired_state import Admission, AdmissionPolicy, DesiredState


class NeuronWish(models.Model):
    """The state that the operator wants of a neuron, which may not have reported yet. Written by
    ``fleet.services.hosts.neurons`` only."""

    neuron_name = models.CharField(max_length=100, unique=True)
    admission = models.CharField(
        max_length=16,
        choices=[(word.value, word.value) for word in Admission],
        default=Admission.ADMITTED.value,
    )
    drain_wanted_at = models.DateTimeField(
        null=True, blank=True, help_text="Since when it is to be drained; empty: it is not."
    )
    drain_ends_at = models.DateTimeField(
        null=True, blank=True, help_text="When what still runs there is ended; empty: it finishes."
    )
    models_before_drain = models.JSONField(
        default=list,
        db_default=models.Value([], models.JSONField()),
        blank=True,
        help_text="What was loaded there when its drain began, the last used first: it is loaded "
        "again after the drain.",
    )

    class Meta:
        ordering = ["neuron_name"]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(admission__in=[word.value for word in Admission]),
                name="neuron_wish_admission_known",
            )
        ]

    def __str__(self) -> str:
        return self.neuron_name

    def desired_state(self) -> DesiredState:
        return DesiredState(
            drain=self.drain_wanted_at is not None,
            admission=Admission(self.admission),
        )


class FleetPolicy(models.Model):
    """One row, of key 1: what holds for the fleet as a whole."""

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
            models.CheckConstraint(
                condition=models.Q(admission__in=[word.value for word in AdmissionPolicy]),
                name="fleet_policy_admission_known",
            )
        ]

    def __str__(self) -> str:
        return f"admission: {self.admission}"
