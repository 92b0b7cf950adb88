"""Identifies a request by its headers: its caller, its end user, and the servers it came through.

    HELEXA_API_KEY ─▶ the shared account
    hx-… key       ─▶ its account                       401 where it is not, or no longer, one
    neither        ─▶ anonymous, where that is allowed  else 401

This server's own address and the operator's setting decide whether callers without a key are
served, never the peer's address: a proxy on this machine connects from it for any client. Where
they are served, Origin and Host are checked, so that no foreign web page can use a visitor's
browser.

The end user that a client names counts only with a trusted key: others could put any person's name
into the records. Headers come before the body, because a proxy that knows who has logged in sets
them.

A request to an upstream names in ``Via`` the servers it has passed (RFC 9110, section 7.6.3), so
that two servers that are each other's upstreams cannot loop it. The gateways of one fleet share a
pseudonym.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from helexa_site.addresses import is_loopback
from helexa_site.config import Config
from helexa_site.middleware import host_is_allowed
from inference.protocol.generation import EmbeddingRequest, GenerationRequest, Request, ScoreRequest
from inference.wire.errors import (
    ApiError,
    ForbiddenError,
    InsufficientScopeError,
    InvalidApiKeyError,
    ServiceUnavailableError,
)
from metering.api_keys import PREFIX_MARK
from metering.errors import DirectoryUnavailableError, KeyRefusedError
from metering.principal import ANONYMOUS_ACCOUNT, SELF_TEST, Principal, Scope

if TYPE_CHECKING:
    from metering.key_directory import KeyDirectory

Headers = Iterable[tuple[bytes, bytes]]

BEARER = b"bearer"
OUR_MARK = re.compile(rb"(?<![A-Za-z0-9])" + re.escape(PREFIX_MARK.encode()))
SELF_TEST_HEADER = b"helexa-self-test"
"""Sent by ``serve`` with its own key, which commands on its machine use too."""
API_KEY_HEADERS = (b"x-api-key", b"api-key")
"""Anthropic's clients use the first, Azure's the second."""
ANY_ORIGIN = "*"
LOCAL_ORIGIN = re.compile(
    r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"
    r"|(app|file|tauri|vscode-file|vscode-webview)://.*"
)
ORIGIN_NOT_ALLOWED = (
    "Web pages of this origin may not use this server: a browser asks it first, without an API "
    "key, and does not send the request. The operator can name the origin in "
    "HELEXA_ALLOWED_ORIGINS. A program that is no browser may send an API key."
)

REQUEST_ID = "helexa.request_id"
"""The ASGI scope's entry with the id of a request that no consumer sees."""
REFUSED = "helexa.refused"
"""The ASGI scope's entry in which Django puts its ``NotedRefusal``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedRefusal:
    """``endpoint`` is one of a fixed set, empty where no view answers."""

    code: str
    message: str
    account: str = ""
    key: str = ""
    endpoint: str = ""


LOGIN = "helexa.login"


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """Either ``principal`` or ``refusal`` is set."""

    principal: Principal | None = None
    username: str = ""
    refusal: ApiError | None = None

    def known(self) -> Principal:
        """Raises ``ApiError``."""
        if self.refusal is not None:
            raise self.refusal
        assert self.principal is not None, "a principal or a refusal"
        return self.principal


def allows_anonymous(config: Config) -> bool:
    if config.allow_anonymous is not None:
        return config.allow_anonymous
    host = config.listen_host
    return host is not None and is_loopback(host) and config.api_key is None


def origin_is_allowed(config: Config, origin: str) -> bool:
    """Other sites' pages never count as local, whichever address their reader's browser has: else
    any web site could use its visitors' engines."""
    if ANY_ORIGIN in config.allowed_origins or origin in config.allowed_origins:
        return True
    return LOCAL_ORIGIN.fullmatch(origin) is not None


class Identifier:
    def __init__(self, config: Config, directory: KeyDirectory) -> None:
        self._config = config
        self._directory = directory
        self._allows_anonymous = allows_anonymous(config)

    async def identify(self, headers: Headers, *, scope: Scope) -> Principal:
        """``headers`` as in an ASGI scope, names in lower case. Raises ``ApiError``."""
        principal = await self.principal_of(headers)
        ensure_scope(principal, scope)
        return principal

    async def principal_of(self, headers: Headers) -> Principal:
        """Raises ``ApiError``."""
        with _refusals():
            return await self._principal(dict(headers))

    async def still(self, account: str, key: str) -> Principal:
        """An earlier caller's present state; ``key`` is the public prefix. Raises ``ApiError``."""
        with _refusals():
            if key:
                principal = await self._directory.find_by_prefix(key)
            elif account == ANONYMOUS_ACCOUNT:
                if not self._allows_anonymous:
                    raise InvalidApiKeyError("Callers without a key are not served any more.")
                principal = self._directory.anonymous()
            else:
                principal = self._directory.shared()
        ensure_scope(principal, Scope.INFERENCE)
        return principal

    async def _principal(self, named: Mapping[bytes, bytes]) -> Principal:
        given = presented_keys(
            named.get(b"authorization", b""), *(named.get(name, b"") for name in API_KEY_HEADERS)
        )
        if holds_shared_key(given, self._config):
            is_serve = any(_is_equal(key, self._config.serve_key) for key in given)
            is_self_test = is_serve and SELF_TEST_HEADER in named
            return SELF_TEST if is_self_test else self._directory.shared()
        for key in given:
            if self._directory.prefix_of(text := key.decode("latin-1")) is not None:
                return await self._directory.find(text)
        if given and (not self._allows_anonymous or resemble_ours(given)):
            raise InvalidApiKeyError("The API key is not valid.")
        if not self._allows_anonymous:
            raise InvalidApiKeyError(
                "Send your API key as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'."
            )
        self._check_browser(named)
        return self._directory.anonymous()

    def _check_browser(self, named: Mapping[bytes, bytes]) -> None:
        origin = named.get(b"origin")
        if origin is not None and not origin_is_allowed(self._config, origin.decode("latin-1")):
            raise ForbiddenError("origin_not_allowed", ORIGIN_NOT_ALLOWED)
        if not host_is_allowed(self._config, named.get(b"host", b"").decode("latin-1")):
            raise ForbiddenError(
                "host_not_allowed",
                "Requests for this Host are answered only with an API key; the operator can name "
                "the host in HELEXA_ALLOWED_HOSTS.",
            )


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except KeyRefusedError as error:
        raise InvalidApiKeyError(str(error), account=error.account, key=error.key) from error
    except DirectoryUnavailableError as error:
        raise ServiceUnavailableError("database_unavailable", str(error)) from error


def ensure_scope(principal: Principal, scope: Scope) -> None:
    """Raises ``InsufficientScopeError``."""
    if not principal.has(scope):
        raise InsufficientScopeError(scope, account=principal.account, key=principal.key)


def presented_keys(authorization: bytes, *api_keys: bytes) -> list[bytes]:
    """Some clients send a second key as a placeholder, omit the word Bearer, or add it wrongly."""
    scheme, _, rest = authorization.strip().partition(b" ")
    if scheme.lower() == BEARER or resemble_ours([rest]):
        authorization = rest
    elif rest:
        authorization = b""  # a proxy's password, for example
    keys = (authorization, *map(_without_bearer, api_keys))
    return [key.strip() for key in keys if key.strip()]


def _without_bearer(value: bytes) -> bytes:
    scheme, _, rest = value.strip().partition(b" ")
    return rest if scheme.lower() == BEARER else value


def resemble_ours(keys: Iterable[bytes]) -> bool:
    return any(OUR_MARK.search(key) for key in keys)


def holds_shared_key(given: list[bytes], config: Config) -> bool:
    """Compares all, in constant time."""
    keys = (config.api_key, config.serve_key)
    equal = [_is_equal(one, key) for one in given for key in keys]
    return any(equal)


def _is_equal(given: bytes, key: str | None) -> bool:
    return key is not None and hmac.compare_digest(given, key.encode())


HEADERS = (
    *(b"x-litellm-customer-id", b"x-litellm-end-user-id"),
    *(b"x-openwebui-user-email", b"x-openwebui-user-id"),
)
"""LiteLLM's and Open WebUI's, in lower case; the first one that is not empty counts."""
MAX_CHARS = 128
NUM_DIGEST_CHARS = 16


def end_user_of_headers(headers: Iterable[tuple[bytes, bytes]], principal: Principal) -> str:
    if not principal.names_end_user:
        return ""
    given = dict(headers)
    named = (cleaned(given.get(name, b"").decode("utf-8", "replace")) for name in HEADERS)
    return next(filter(None, named), "")


def take_end_user(request: Request, principal: Principal) -> tuple[Request, str]:
    """Takes the name out of the request: no neuron needs it."""
    if not isinstance(request, GenerationRequest | EmbeddingRequest | ScoreRequest):
        return request, ""
    if not request.end_user:
        return request, ""
    end_user = cleaned(request.end_user) if principal.names_end_user else ""
    return msgspec.structs.replace(request, end_user=""), end_user


def cleaned(name: str) -> str:
    """A long name ends with a digest of the whole, so that two stay distinct."""
    name = "".join(filter(str.isprintable, name)).strip()
    if len(name) <= MAX_CHARS:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:NUM_DIGEST_CHARS]
    return f"{name[: MAX_CHARS - NUM_DIGEST_CHARS - 1]}…{digest}"


VIA = b"via"
PROTOCOL = "1.1"
DIGEST_CHARACTERS = 16


def pseudonym_of(secret_key: str) -> str:
    digest = hmac.new(secret_key.encode(), b"via", hashlib.sha256).hexdigest()
    return f"helexa-{digest[:DIGEST_CHARACTERS]}"


def via_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    return ", ".join(value.decode("latin-1") for name, value in headers if name == VIA)


def has_passed(via: str, pseudonym: str) -> bool:
    return any(pseudonym in entry.split() for entry in via.split(","))


def passed_on(via: str, pseudonym: str) -> str:
    own = f"{PROTOCOL} {pseudonym}"
    return f"{via}, {own}" if via else own
