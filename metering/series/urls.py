"""The paths under ``/series/``."""

from __future__ import annotations

from django.urls import path

from metering.series.panel import series_panel

urlpatterns = [path("panel", series_panel, name="series-panel")]
