"""Hosts that were invited, each with a Redis user of its own."""

from __future__ import annotations

from django.db import models


class Invitation(models.Model):
    """Written by ``fleet.services.hosts.invitations`` only. The control makes the user in Redis
    from it again wherever Redis has forgotten it."""

    neuron_name = models.CharField(max_length=63, unique=True)
    secret_sha256 = models.CharField(
        max_length=64, help_text="Of the user's password, 256 random bits, which is shown once."
    )
    invited_by = models.CharField(max_length=200)
    invited_at = models.DateTimeField(auto_now_add=True)
    cut_off_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="When it was shut out for what it wrote. Inviting it again lets it in.",
    )
    cut_off_reason = models.CharField(max_length=300, blank=True, default="", db_default="")

    class Meta:
        ordering = ["neuron_name"]

    def __str__(self) -> str:
        return self.neuron_name
