"""Who may ask: anybody on this machine, others with the key.

The peer's address decides. A forwarding header is never believed, but one that is there says that
a proxy on this machine speaks for somebody else, so such a request needs the key too. So does one
that a browser on this machine sends for a web page of elsewhere.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable, Mapping

from helexa_site.config import Config
from inference.gateway.origins import is_allowed
from inference.wire.errors import InvalidApiKeyError

FORWARDING_HEADERS = frozenset({b"forwarded", b"x-forwarded-for", b"x-real-ip"})
BEARER = b"bearer "
API_KEY_HEADER = b"x-api-key"
"""Anthropic's clients send their key in it."""


def authorize(
    config: Config, client: tuple[str, int] | None, headers: Iterable[tuple[bytes, bytes]]
) -> None:
    """``client`` and ``headers`` as in an ASGI scope, header names in lower case. Raises
    ``InvalidApiKeyError``."""
    named = dict(headers)
    if config.allow_anonymous or (_is_loopback(client) and not _is_for_another(config, named)):
        return
    given = _given_keys(named)
    if not given:
        raise InvalidApiKeyError(
            "Send your API key as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'."
        )
    if config.api_key is None or not _any_equals(given, config.api_key.encode()):
        raise InvalidApiKeyError("The API key is not valid.")


def _is_for_another(config: Config, named: Mapping[bytes, bytes]) -> bool:
    """Whether who sent the request did so for somebody elsewhere."""
    if FORWARDING_HEADERS & named.keys():
        return True
    origin = named.get(b"origin")
    return origin is not None and not is_allowed(config, origin.decode("latin-1"))


def _given_keys(named: Mapping[bytes, bytes]) -> list[bytes]:
    """Some clients send both headers, one with a placeholder."""
    bearer = named.get(b"authorization", b"")
    keys = [bearer[len(BEARER) :]] if bearer[: len(BEARER)].lower() == BEARER else []
    if API_KEY_HEADER in named:
        keys.append(named[API_KEY_HEADER])
    return [key.strip() for key in keys]


def _any_equals(given: list[bytes], key: bytes) -> bool:
    return any(hmac.compare_digest(one, key) for one in given)


def _is_loopback(client: tuple[str, int] | None) -> bool:
    try:
        address = ipaddress.ip_address(client[0] if client else "")
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
