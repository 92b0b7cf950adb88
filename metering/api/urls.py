"""The paths under ``/api/``."""

from __future__ import annotations

from django.urls import path, re_path

from metering.api.accounts import AccountsView, AccountView, MembersView, MemberView
from metering.api.budgets import BudgetsView, BudgetView
from metering.api.keys import KeysView, OneKeyView
from metering.api.requests import CaptureView, RequestsView, RequestView
from metering.api.series import SeriesView
from metering.api.views import MeView, UnknownUrlView, UsageView

urlpatterns = [
    path("me", MeView.as_view(), name="api-me"),
    path("usage", UsageView.as_view(), name="api-usage"),
    path("requests", RequestsView.as_view(), name="api-requests"),
    path("requests/<str:pk>", RequestView.as_view(), name="api-request"),
    path("requests/<str:pk>/capture", CaptureView.as_view(), name="api-request-capture"),
    path("series", SeriesView.as_view(), name="api-series"),
    path("accounts", AccountsView.as_view(), name="api-accounts"),
    path("accounts/<str:name>", AccountView.as_view(), name="api-account"),
    path("members", MembersView.as_view(), name="api-members"),
    path("members/<str:account>/<str:user>", MemberView.as_view(), name="api-member"),
    path("keys", KeysView.as_view(), name="api-keys"),
    path("keys/<str:prefix>", OneKeyView.as_view(), name="api-key"),
    path("budgets", BudgetsView.as_view(), name="api-budgets"),
    path("budgets/<int:pk>", BudgetView.as_view(), name="api-budget"),
    re_path(r"", UnknownUrlView.as_view()),
]
