"""The bodies of a request whose key or account an operator captures. Written by
``metering.request_records``, masked and cut; read by ``metering.services.captures``."""

from __future__ import annotations

from django.db import models


class CapturedRequest(models.Model):
    """The captured bodies of the ``RequestRecord`` with the same ``request_id``."""

    request_id = models.UUIDField(unique=True)
    at = models.DateTimeField(db_index=True, help_text="When it ended.")
    headers = models.TextField(blank=True)
    request = models.TextField(blank=True)
    answer = models.TextField(blank=True)
    trace = models.TextField(blank=True)

    def __str__(self) -> str:
        return self.request_id.hex
