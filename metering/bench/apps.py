"""Django's handle on helexa-bench."""

from __future__ import annotations

from django.apps import AppConfig


class BenchConfig(AppConfig):
    name = "metering.bench"
    label = "bench"
    verbose_name = "Bench"
    default_auto_field = "django.db.models.BigAutoField"
