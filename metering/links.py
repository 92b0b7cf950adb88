"""Addresses of the pages of accounts, keys, requests and audited objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import urlencode

from django.urls import reverse

from fleet.dashboard.links import model_url, neuron_url

ENDS = frozenset({"delete", "remove", "revoke"})
"""Actions after which a neuron, a model or an account has no page. A key keeps its page."""


def account_url(name: str) -> str:
    return reverse("admin:metering_account_change", args=[name])


def key_url(prefix: str) -> str:
    return reverse("admin:metering_apikey_change", args=[prefix])


def request_url(request_id: str) -> str:
    """The address of the request's record, which may be deleted before the ledger's entry."""
    return reverse("request", args=[request_id])


AUDITED: Mapping[str, Callable[[str], str]] = {
    "account": account_url,
    "alias": model_url,
    "key": key_url,
    "model": model_url,
    "neuron": neuron_url,
    "request": request_url,
}


def audited_url(action: str, object_id: str) -> str:
    """The page of an audit entry's object; empty: it has none."""
    noun, _, verb = action.partition(".")
    has_ended = verb in ENDS and noun != "key"
    return "" if has_ended or noun not in AUDITED else AUDITED[noun](object_id)


def requests_url(**words: object) -> str:
    query = urlencode({name: word for name, word in words.items() if word})
    return f"{reverse('requests')}?{query}" if query else reverse("requests")
