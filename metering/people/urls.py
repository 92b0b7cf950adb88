"""The paths of passwords."""

from __future__ import annotations

from django.urls import path

from metering.people.passwords import ChangePassword, FirstPassword

urlpatterns = [
    path("password/", ChangePassword.as_view(), name="password"),
    path("welcome/<uidb64>/<token>/", FirstPassword.as_view(), name="first-password"),
]
