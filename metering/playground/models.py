"""The playground's tables."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models


class Conversation(models.Model):
    """Private to one person: no page shows it to anybody else, operators included."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="conversations"
    )
    title = models.CharField(max_length=100)
    state = models.TextField()
    """JSON of a ``ConversationState``, as text: PostgreSQL's JSON refuses some characters."""
    search_text = models.TextField(blank=True)
    num_bytes = models.PositiveIntegerField()
    revision = models.PositiveIntegerField(default=1)
    """Grows with each save: a page with an older one does not overwrite a newer one."""
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField()

    class Meta:
        db_table = "playground_conversations"
        ordering = ["-updated_at", "id"]
        indexes = [models.Index(fields=["user", "-updated_at"], name="conversation_user_at")]

    def __str__(self) -> str:
        return str(self.id)
