"""Metering's admin pages through Django's client."""

from __future__ import annotations

from typing import Any

from django.test import Client
from django.urls import reverse

from metering.models import (
    AuditEntry,
)


def url(noun: str, view: str, *args: Any) -> str:
    return reverse(f"admin:metering_{noun}_{view}", args=args)


def page(client: Client, noun: str, view: str = "changelist", *args: Any) -> str:
    response = client.get(url(noun, view, *args))
    assert response.status_code == 200
    return str(response.content.decode())


def post(client: Client, noun: str, view: str, *args: Any, **form: Any) -> Any:
    response = client.post(url(noun, view, *args), form)
    if response.status_code == 200 and response.context and "errors" in response.context:
        raise AssertionError(response.context["errors"])
    return response


def errors(client: Client, noun: str, view: str, *args: Any, **form: Any) -> str:
    """Returns the errors of a form that is shown again."""
    response = client.post(url(noun, view, *args), form)
    assert response.status_code == 200
    return str(response.context["errors"])


def newest() -> tuple[str, str, str]:
    entry = AuditEntry.objects.first()
    assert entry is not None
    return entry.actor, entry.action, entry.object_id
