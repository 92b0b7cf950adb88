"""Callers of the REST API: a key, a person with a session, or an anonymous caller where no key is
required. They are read from the database for each request, which are few and in threads."""

from __future__ import annotations

import time
from dataclasses import dataclass

from django.conf import settings
from django.contrib.auth.models import AbstractUser, AnonymousUser
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.request import Request

from helexa_site.config import Config
from inference.gateway.request.identify import (
    API_KEY_HEADERS,
    allows_anonymous,
    holds_shared_key,
    presented_keys,
)
from metering.api.problems import AUTHENTICATE, ProblemError
from metering.api_keys import (
    AccountRecord,
    digest_secret,
    imported_prefix,
    person_principal,
    prefix_of,
)
from metering.errors import DisabledAccountError, InvalidKeyError
from metering.key_directory import DatabaseKeyStore
from metering.principal import ANONYMOUS_ACCOUNT, SHARED_ACCOUNT, Principal, Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """``principal``: ``None`` for a person without an account. ``accounts``: whose usage they may
    read; ``None``: everybody's."""

    principal: Principal | None
    username: str | None = None
    roles: tuple[tuple[str, str], ...] = ()
    accounts: frozenset[str] | None = frozenset()

    is_command: bool = False
    """``manage.py`` on a machine with the database: its user may do everything."""

    def has(self, scope: Scope) -> bool:
        """For keys and commands; people have permissions instead."""
        return self.is_command or (self.principal is not None and self.principal.has(scope))

    @property
    def sees_all(self) -> bool:
        return self.username is None and self.has(Scope.ACCOUNTS_READ)

    def ensure_scope(self, scope: Scope) -> None:
        """People need none. Raises ``ProblemError``."""
        if self.username is None and not self.has(scope):
            raise ProblemError(403, "insufficient_scope", f"This needs the scope {scope.value}.")


Found = tuple[AbstractUser | AnonymousUser, Caller]


class Authentication(BaseAuthentication):
    """``scheme``: its name and definition in OpenAPI; ``None``: a caller sends nothing."""

    scheme: tuple[str, dict[str, str]] | None = None


class KeyAuthentication(Authentication):
    """``Authorization: Bearer KEY`` or ``x-api-key: KEY``. An unknown key is refused also where no
    key is required: SDKs, which send placeholders, do not call this API."""

    scheme = ("key", {"type": "http", "scheme": "bearer", "description": "An API key of helexa."})

    def authenticate(self, request: Request) -> Found | None:
        given = presented_keys(
            _header(request, "authorization"),
            *(_header(request, name.decode()) for name in API_KEY_HEADERS),
        )
        if not given:
            return None
        config: Config = settings.CONFIG
        if holds_shared_key(given, config):
            return AnonymousUser(), _caller(_built_in(SHARED_ACCOUNT))
        for key in (one.decode("latin-1") for one in given):
            if principal := _find(key):
                return AnonymousUser(), _caller(principal)
        raise InvalidKeyError("The API key is not valid.")

    def authenticate_header(self, _request: Request) -> str:
        return AUTHENTICATE


class PersonAuthentication(SessionAuthentication, Authentication):
    """``?account=`` names one of the user's accounts."""

    scheme = ("session", {"type": "apiKey", "in": "cookie", "name": "sessionid"})

    def authenticate(self, request: Request) -> Found | None:
        found = super().authenticate(request)
        if found is None:
            return None
        user = found[0]
        assert isinstance(user, AbstractUser)
        return user, _person(user, request.query_params.get("account"))


class AnonymousAuthentication(Authentication):
    def authenticate(self, _request: Request) -> Found:
        if not allows_anonymous(settings.CONFIG):
            raise ProblemError(
                401,
                "invalid_api_key",
                "Send your API key as 'Authorization: Bearer KEY' or as 'x-api-key: KEY', "
                "or log in.",
            )
        return AnonymousUser(), _caller(_built_in(ANONYMOUS_ACCOUNT))


def _caller(principal: Principal) -> Caller:
    return Caller(principal=principal, accounts=frozenset({principal.account}))


def _find(key: str) -> Principal | None:
    """``None`` for a text that has no key's form and was not imported."""
    secret = digest_secret(settings.SECRET_KEY)
    made = prefix_of(key)
    prefix = made or imported_prefix(key, secret)
    record = DatabaseKeyStore().keys(prefix).get(prefix)
    if record is not None:
        return record.principal_for(key, secret=secret, now_unix_s=time.time())
    if made is not None:
        raise InvalidKeyError("The API key is not valid.")
    return None


def _built_in(name: str) -> Principal:
    return DatabaseKeyStore().built_in_accounts().get(name, AccountRecord(name=name)).principal()


def _person(user: AbstractUser, account: str | None) -> Caller:
    memberships = DatabaseKeyStore().memberships(user.pk)
    roles = tuple(sorted((one.account.name, one.role) for one in memberships))
    theirs = frozenset(name for name, _ in roles)
    if account is not None and account not in theirs:
        if not user.is_staff:
            raise ProblemError(
                403, "account_not_allowed", f"You are not in {account!r}.", param="account"
            )
        account = None
    has_one = any(one.account.enabled for one in memberships)
    try:
        principal = person_principal(user, memberships, account) if has_one else None
    except DisabledAccountError as error:
        raise ProblemError(403, "account_not_allowed", str(error), param="account") from error
    return Caller(
        principal=principal,
        username=user.get_username(),
        roles=roles,
        accounts=None if user.is_staff else theirs,
    )


def _header(request: Request, name: str) -> bytes:
    text: str = request.headers.get(name, "")
    return text.encode("latin-1", "replace")
