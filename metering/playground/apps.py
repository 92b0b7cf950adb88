from __future__ import annotations

from django.apps import AppConfig


class PlaygroundConfig(AppConfig):
    name = "metering.playground"
    label = "playground"
    verbose_name = "Playground"
    default_auto_field = "django.db.models.BigAutoField"
