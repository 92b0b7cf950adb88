"""The pages of members. Here are the reader of a page with their permissions, and the addresses of
pages, the admin's included."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, cast
from urllib.parse import urlencode

from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import AbstractUser
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from fleet.dashboard.links import model_url, neuron_url
from metering.audit import Actor, user_actor
from metering.models import Account, ApiKey, Membership, RequestRecord
from metering.principal import ANONYMOUS_ACCOUNT
from metering.selectors import without_playground_keys

MAKES_KEYS = (Membership.Role.OWNER.value, Membership.Role.MEMBER.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    username: str
    is_operator: bool
    roles: dict[str, str]

    @property
    def actor(self) -> Actor:
        return user_actor(self.username)

    @property
    def accounts(self) -> frozenset[str]:
        return frozenset(self.roles)

    @property
    def key_accounts(self) -> list[str]:
        return sorted(name for name, role in self.roles.items() if role in MAKES_KEYS)

    def may_change(self, key: ApiKey) -> bool:
        role = self.roles.get(key.account_id)
        if role == Membership.Role.OWNER:
            return True
        return role in MAKES_KEYS and key.created_by == self.actor

    def may_read_bodies(self, record: RequestRecord) -> bool:
        if self.is_operator:
            return True
        key = ApiKey.objects.filter(prefix=record.key).first() if record.key else None
        return key is not None and self.may_change(key)

    def own_keys(self) -> list[ApiKey]:
        rows = ApiKey.objects.filter(account__in=self.roles).select_related("account")
        shown = without_playground_keys(rows).order_by("-created_at")
        return [key for key in shown if self.may_change(key)]

    @property
    def paying_accounts(self) -> list[str]:
        """For the playground: their own first; operators have all."""
        own = self.key_accounts
        if not self.is_operator:
            return own
        others = Account.objects.filter(enabled=True).exclude(name__in=[*own, ANONYMOUS_ACCOUNT])
        return own + list(others.values_list("name", flat=True))


def reader_of_user(user: AbstractUser) -> Reader:
    rows = Membership.objects.filter(user_id=user.pk, account__enabled=True)
    return Reader(
        username=user.get_username(),
        is_operator=user.is_staff,
        roles=dict(rows.values_list("account_id", "role")),
    )


def for_members(view: Callable[..., HttpResponse]) -> Any:

    @login_required
    @wraps(view)
    def page(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return view(request, reader_of_user(cast(AbstractUser, request.user)), *args, **kwargs)

    return page


def for_operators(view: Callable[..., HttpResponse]) -> Any:
    @for_members
    @wraps(view)
    def page(request: HttpRequest, reader: Reader, *args: Any, **kwargs: Any) -> HttpResponse:
        if not reader.is_operator:
            raise PermissionDenied
        return view(request, reader, *args, **kwargs)

    return page


ENDS = frozenset({"delete", "remove", "revoke"})
"""Actions after which a neuron, a model or an account has no page."""


def account_url(name: str) -> str:
    return reverse("admin:metering_account_change", args=[name])


def key_url(prefix: str) -> str:
    return reverse("admin:metering_apikey_change", args=[prefix])


def request_url(request_id: str) -> str:
    """The record may be deleted before the ledger's entry."""
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
    noun, _, verb = action.partition(".")
    has_ended = verb in ENDS and noun not in KEEPS_ITS_PAGE
    return "" if has_ended or noun not in AUDITED else AUDITED[noun](object_id)


def requests_url(**words: object) -> str:
    query = urlencode({name: word for name, word in words.items() if word})
    return f"{reverse('requests')}?{query}" if query else reverse("requests")
