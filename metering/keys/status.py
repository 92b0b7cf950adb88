"""Whether a key is good, in a word for people."""

from __future__ import annotations

from django.utils import timezone

from metering.models import ApiKey


def key_status(key: ApiKey) -> str:
    """``active``, ``expired``, ``disabled`` with its account, or ``revoked``. Reads the account."""
    if key.revoked_at is not None:
        return "revoked"
    if not key.account.enabled:
        return "disabled"
    if key.expires_at is not None and key.expires_at <= timezone.now():
        return "expired"
    return "active"
