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
    "min_devices": "1",
    "tensor_parallel": "1",
    "min_replicas": "0",
    "max_replicas": "1",
    "adapter_slots": "8",
    "enabled": "on",
}
"""Of a model, as a browser sends it."""


def page(client: Client, noun: str, view: str = "changelist", *args: Any) -> str:
    response = client.get(reverse(f"admin:fleet_{noun}_{view}", args=args))
    assert response.status_code == 200
    return response.content.decode()


def act(client: Client, noun: str, action: str, *rows: Any, **data: str) -> str:
    """Posts a list action, follows to the page it ends on."""
    response = client.post(
        reverse(f"admin:fleet_{noun}_changelist"),
        {"action": action, "_selected_action": [str(row.pk) for row in rows], **data},
        follow=True,
    )
    assert response.status_code == 200
    return response.content.decode()
