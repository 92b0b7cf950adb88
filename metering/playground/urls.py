"""URLs under /playground/."""

from __future__ import annotations

from django.urls import path

from metering.playground import conversation_views, views

urlpatterns = [
    path("", views.playground, name="playground"),
    path("identify", views.identify, name="playground-identify"),
    path("conversations", conversation_views.conversations, name="playground-conversations"),
    path(
        "conversations/<uuid:conversation_id>",
        conversation_views.conversation,
        name="playground-conversation",
    ),
    path(
        "conversations/<uuid:conversation_id>/export",
        conversation_views.export,
        name="playground-export",
    ),
]
