"""Asking the REST API, as a key or as a person."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.test import Client

from metering import services
from metering.actor import COMMAND
from metering.models import Account


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
