"""The paths under ``/api/``."""

from __future__ import annotations

from django.urls import path, re_path

from metering.api.accounts import Accounts, Budgets, Keys, Members
from metering.api.requests import CaptureView, RequestsView, RequestView
from metering.api.views import MeView, SeriesView, UnknownUrlView, UsageView

urlpatterns = [
    path("me", MeView.as_view()),
    path("usage", UsageView.as_view()),
    path("requests", RequestsView.as_view()),
    path("requests/<str:pk>", RequestView.as_view()),
    path("requests/<str:pk>/capture", CaptureView.as_view()),
    path("series", SeriesView.as_view()),
    *(one for noun in (Accounts, Members, Keys, Budgets) for one in noun.urls()),
    re_path(r"", UnknownUrlView.as_view()),
]
