"""Addresses of the pages of accounts, keys, requests and audited objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import urlencode

from django.urls import reverse

from fleet.dashboard.links import model_url, neuron_url

ENDS = frozenset({"delete", "remove", "revoke"})
"""Actions after which a neuron, a model or an account has no page."""


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
    "load_job": model_url,
    "membership": lambda both: account_url(both.partition("/")[0]),
    "model": model_url,
    "neuron": neuron_url,
    "request": request_url,
    "upstream": lambda name: neuron_url(f"upstream:{name}"),
    "user": lambda name: f"{reverse('admin:auth_user_changelist')}?{urlencode({'q': name})}",
}
KEEPS_ITS_PAGE = frozenset({"key", "membership"})


def audited_url(action: str, object_id: str) -> str:
    """The page of an audit entry's object; empty: it has none."""
    noun, _, verb = action.partition(".")
    has_ended = verb in ENDS and noun not in KEEPS_ITS_PAGE
    return "" if has_ended or noun not in AUDITED else AUDITED[noun](object_id)


def requests_url(**words: object) -> str:
    query = urlencode({name: word for name, word in words.items() if word})
    return f"{reverse('requests')}?{query}" if query else reverse("requests")
