"""Who changed what. Written in the same transaction as the change."""

from __future__ import annotations

from django.db import models


class AuditEntry(models.Model):
    """``actor`` reads ``user:alice``, ``key:hx-…``, ``command``, ``gateway`` or ``control``."""

    at = models.DateTimeField(auto_now_add=True, db_index=True)
    actor = models.CharField(max_length=200)
    action = models.CharField(max_length=64, help_text="As in key.create or model.update.")
    object_id = models.CharField(max_length=200)
    detail = models.JSONField(default=dict)

    class Meta:
        ordering = ["-at", "-id"]
        verbose_name_plural = "audit entries"
        indexes = [models.Index(fields=["object_id", "at"], name="audit_object_at")]

    def __str__(self) -> str:
        return f"{self.actor} {self.action} {self.object_id}"
