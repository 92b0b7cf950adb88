"""The admin's pages and list actions, through Django's test client."""

from __future__ import annotations

from typing import Any

from django.test import Client
from django.urls import reverse

FORM = {
    "name": "tiny",
    "source": "pypi:tiny",
    "dtype": "auto",
    "quantization": "auto",
    "kv_dtype": "auto",
    "speculation": "off",
    "device": "auto",
    "idle_action": "unload",
    "task": "text",
    "min_devices": "1",
    "tensor_parallel": "1",
    "spread": "host",
    "min_replicas": "0",
    "max_replicas": "1",
    "adapter_slots": "8",
    "enabled": "on",
}
"""The form of a model, as a browser sends it."""


def page(client: Client, noun: str, view: str = "changelist", *args: Any) -> str:
    response = client.get(reverse(f"admin:fleet_{noun}_{view}", args=args))
    assert response.status_code == 200
    return response.content.decode()


def act(client: Client, noun: str, action: str, *rows: Any, **data: str) -> str:
    """Posts a list action, confirms it where that is asked, follows to the page it ends on."""
    form = {"action": action, "_selected_action": [str(row.pk) for row in rows], **data}
    where = reverse(f"admin:fleet_{noun}_changelist")
    response = client.post(where, form, follow=True)
    if b'name="sure"' in response.content:
        response = client.post(where, {**form, "sure": "1"}, follow=True)
    assert response.status_code == 200
    return response.content.decode()
