from __future__ import annotations

from django.apps import AppConfig


class ConversationsConfig(AppConfig):
    name = "inference.conversations"
    label = "conversations"
    default_auto_field = "django.db.models.BigAutoField"
