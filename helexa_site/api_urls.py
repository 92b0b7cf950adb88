"""The paths of the REST API alone: commands call its views without importing any page."""

from __future__ import annotations

from django.urls import include, path

urlpatterns = [
    path("api/", include("fleet.api.urls")),
    path("api/bench/", include("metering.bench.api")),
    path("api/", include("metering.api.views")),  # last: it also answers unknown paths
]
