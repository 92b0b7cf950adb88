"""Django's own paths: the operator's console and the REST API."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

handler404 = "helexa_site.not_found.page_not_found"

urlpatterns = [
    path("admin/", admin.site.urls),
    path("api/", include("fleet.api.urls")),
    path("api/bench/", include("metering.bench.api.urls")),
    path("api/", include("metering.api.urls")),  # the last: it answers what is nowhere
    path("", RedirectView.as_view(pattern_name="admin:index")),
]
