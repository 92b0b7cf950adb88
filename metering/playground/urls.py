"""Under /playground/."""

from __future__ import annotations

from django.urls import path

from metering.playground import views

urlpatterns = [
    path("", views.playground, name="playground"),
    path("key", views.key, name="playground-key"),
]
