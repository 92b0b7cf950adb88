"""Addresses of the pages of models and neurons, by name."""

from __future__ import annotations

from functools import cache
from urllib.parse import quote

from django.urls import reverse


def model_url(name: str) -> str:
    return f"{_address('model-page')}?name={quote(name, safe='')}"


def neuron_url(name: str) -> str:
    return f"{_address('neuron-page')}?name={quote(name, safe='')}"


@cache
def _address(url_name: str) -> str:
    return reverse(url_name)
