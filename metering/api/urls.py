"""What is under ``/api/``."""

from __future__ import annotations

from django.urls import path, re_path

from metering.api.views import MeView, UnknownUrlView, UsageView

urlpatterns = [
    path("me", MeView.as_view(), name="api-me"),
    path("usage", UsageView.as_view(), name="api-usage"),
    re_path(r"", UnknownUrlView.as_view()),
]
