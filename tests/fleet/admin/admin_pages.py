"""The admin's pages and list actions, through Django's test client."""

from __future__ import annotations

import html
from typing import Any

from django.test import Client
from django.urls import reverse

FORM = {
    "name": "tiny",
    "source": "pypi:tiny",
    **dict.fromkeys(("dtype", "quantization", "kv_dtype", "device"), "auto"),
    "speculation": "off",
    "idle_action": "unload",
    "task": "text",
    "spread": "host",
    **dict.fromkeys(("min_devices", "tensor_parallel", "max_replicas"), "1"),
    "min_replicas": "0",
    "adapter_slots": "8",
    "enabled": "on",
}
"""The form of a model, as a browser sends it."""


def url(noun: str, view: str = "changelist", *args: Any) -> str:
    return reverse(f"admin:fleet_{noun}_{view}", args=args)


def text_of(response: Any) -> str:
    assert response.status_code == 200
    return html.unescape(response.content.decode()).replace("\xa0", " ")


def page(client: Client, noun: str, view: str = "changelist", *args: Any, **query: str) -> str:
    return text_of(client.get(url(noun, view, *args), query))


def sent(client: Client, noun: str, view: str, *args: Any, **form: Any) -> str:
    """Posts a form; returns the page that follows, or the form with its errors."""
    return text_of(client.post(url(noun, view, *args), form, follow=True))


def act(client: Client, noun: str, action: str, *rows: Any, **data: str) -> str:
    """Posts a list action, confirms it where that is asked, follows to the page it ends on."""
    form = {"action": action, "_selected_action": [str(row.pk) for row in rows], **data}
    answer = sent(client, noun, "changelist", **form)
    return sent(client, noun, "changelist", **form, sure="1") if 'name="sure"' in answer else answer
