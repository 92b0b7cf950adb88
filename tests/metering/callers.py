"""Asking the REST API and the pages, as a key or as a person; and what they find there."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from metering import services
from metering.audit import COMMAND
from metering.models import Account, AuditEntry, RequestRecord, UsageHour


def get(client: Client, path: str, key: str | None = None, **headers: str) -> Any:
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    return client.get(f"/api/{path}", headers=headers)


def ok(client: Client, path: str, key: str | None = None, **headers: str) -> Any:
    response = get(client, path, key, **headers)
    assert response.status_code == 200, response.content
    assert response["Content-Type"] == "application/json"
    return response.json()


def refused(client: Client, path: str, key: str | None = None, **headers: str) -> tuple[int, str]:
    """The status and the code; the body has all that a problem has."""
    response = get(client, path, key, **headers)
    assert response["Content-Type"].startswith("application/problem+json")
    problem = response.json()
    assert problem.keys() == {"type", "title", "status", "code", "detail", "param"}
    assert problem["status"] == response.status_code
    if response.status_code == 401:
        assert response["WWW-Authenticate"] == "Bearer"
    return response.status_code, problem["code"]


def person(name: str, account: Account | None = None, role: str = "owner", **fields: Any) -> Client:
    user = User.objects.create_user(name, **fields)
    if account is not None:
        services.membership_set(actor=COMMAND, account=account, user=user, role=role)
    client = Client()
    client.force_login(user)
    return client


TOKENS = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")


def staff(name: str = "dave", *codenames: str) -> Client:
    """Somebody of the staff with these permissions."""
    user = User.objects.create_user(name, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client()
    client.force_login(user)
    return client


def text_of(client: Client, path: str, **headers: str) -> str:
    response = client.get(path, headers=headers)
    assert response.status_code == 200, path
    return str(response.content.decode())


def url(noun: str, view: str, *args: Any) -> str:
    return reverse(f"admin:metering_{noun}_{view}", args=args)


def page(client: Client, noun: str, view: str = "changelist", *args: Any) -> str:
    return text_of(client, url(noun, view, *args))


def post(client: Client, noun: str, view: str, *args: Any, **form: Any) -> Any:
    response = client.post(url(noun, view, *args), form)
    if response.status_code == 200 and response.context and "errors" in response.context:
        raise AssertionError(response.context["errors"])
    return response


def recorded(**values: Any) -> str:
    """Stores the record of a request that was answered now; returns its id."""
    made = RequestRecord.objects.create(
        **{
            **dict.fromkeys((*TOKENS, "cost_micro_usd", "duration_ms"), 1),
            "request_id": uuid.uuid4(),
            "at": timezone.now(),
            "account": "research",
            "key": "hx-1",
            "model": "tiny",
            "endpoint": "/v1/chat/completions",
            "status": 200,
            "outcome": "answered",
            **values,
        }
    )
    return made.request_id.hex


def used(account: str = "research", model: str = "tiny", *, days_ago: int = 0, **sums: Any) -> None:
    """Stores what was used in this hour, or in the one so many days ago."""
    hour = timezone.now().replace(minute=0, second=0, microsecond=0) - timedelta(days=days_ago)
    values = {**dict.fromkeys(TOKENS, 10), "requests": 1, "cost_micro_usd": 0, **sums}
    UsageHour.objects.create(hour=hour, account=account, model=model, **values)


def newest() -> tuple[str, str, str]:
    entry = AuditEntry.objects.first()
    assert entry is not None
    return entry.actor, entry.action, entry.object_id
