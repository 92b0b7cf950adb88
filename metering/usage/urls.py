"""The paths under ``/usage/``."""

from __future__ import annotations

from django.urls import path

from metering.usage import accounts, audit, keys
from metering.usage import summary as usage

urlpatterns = [
    path("", usage.usage_page, name="usage"),
    path("keys", keys.keys_page, name="usage-keys"),
    path("keys/<str:prefix>", keys.key_page, name="usage-key"),
    path("keys/<str:prefix>/revoke", keys.key_revoke, name="usage-key-revoke"),
    path("accounts", accounts.accounts_page, name="usage-accounts"),
    path("audit", audit.audit_page, name="usage-audit"),
]
