"""The paths under ``/requests/``."""

from __future__ import annotations

from django.urls import path

from metering.requests import views

urlpatterns = [
    path("", views.requests_page, name="requests"),
    path("<str:request_id>", views.request_page, name="request"),
]
