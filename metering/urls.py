"""The paths of members' pages: passwords, usage, requests, series and the playground."""

from __future__ import annotations

from django.urls import include, path

from metering.admin.people import ChangePassword, FirstPassword
from metering.pages import keys, usage
from metering.pages.requests import request_page, requests_page
from metering.pages.series import series_panel
from metering.playground import views as playground

USAGE = [
    path("", usage.usage_page, name="usage"),
    path("keys", keys.keys_page, name="usage-keys"),
    path("keys/<str:prefix>", keys.key_page, name="usage-key"),
    path("keys/<str:prefix>/revoke", keys.key_revoke, name="usage-key-revoke"),
    path("accounts", usage.accounts_page, name="usage-accounts"),
    path("audit", usage.audit_page, name="usage-audit"),
]
CONVERSATION = "conversations/<uuid:conversation_id>"
PLAYGROUND = [
    path("", playground.playground, name="playground"),
    path("identify", playground.identify, name="playground-identify"),
    path("markdown", playground.markdown, name="playground-markdown"),
    path("conversations", playground.conversations, name="playground-conversations"),
    path(CONVERSATION, playground.conversation, name="playground-conversation"),
    path(f"{CONVERSATION}/export", playground.export, name="playground-export"),
]
urlpatterns = [
    path("password/", ChangePassword.as_view(), name="password"),
    path("welcome/<uidb64>/<token>/", FirstPassword.as_view(), name="first-password"),
    path("usage/", include(USAGE)),
    path("requests/", requests_page, name="requests"),
    path("requests/<str:request_id>", request_page, name="request"),
    path("series/panel", series_panel, name="series-panel"),
    path("playground/", include(PLAYGROUND)),
]
