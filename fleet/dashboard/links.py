"""Addresses of the pages of models and neurons, by name."""

from __future__ import annotations

from urllib.parse import quote

from django.urls import reverse


def model_url(name: str) -> str:
    return f"{reverse('model-page')}?name={quote(name, safe='')}"


def neuron_url(name: str) -> str:
    return f"{reverse('neuron-page')}?name={quote(name, safe='')}"
