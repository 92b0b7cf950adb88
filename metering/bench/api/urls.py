"""The paths under ``/api/bench/``."""

from __future__ import annotations

from django.urls import path, re_path

from metering.api.views import UnknownUrlView
from metering.bench.api import views

urlpatterns = [
    path("health", views.HealthView.as_view()),
    path("dimensions", views.DimensionsView.as_view()),
    path("summary", views.SummaryView.as_view()),
    path("series", views.SeriesView.as_view()),
    path("runs", views.RunsView.as_view()),
    path("scaling", views.ScalingView.as_view()),
    path("concurrency", views.ConcurrencyView.as_view()),
    path("swap", views.SwapView.as_view()),
    path("compare", views.CompareView.as_view()),
    re_path(r"", UnknownUrlView.as_view()),
]
