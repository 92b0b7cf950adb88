"""Reads of accounts and keys by the names that people type."""

from __future__ import annotations

from helexa_site.program import program
from metering.errors import UnknownAccountError, UnknownKeyError
from metering.keys import prefix_of
from metering.models import Account, ApiKey


def account_find(name: str) -> Account:
    """Raises ``UnknownAccountError``."""
    account = Account.objects.filter(name=name).first()
    if account is None:
        raise UnknownAccountError(
            f"There is no account named {name!r}. Make one: {program()} accounts create NAME"
        )
    return account


def key_find(prefix: str) -> ApiKey:
    """By its prefix, or by the whole key, of which only the prefix is looked at. Raises
    ``UnknownKeyError``, whose message never holds a whole key."""
    wanted = prefix_of(prefix) or prefix
    key = ApiKey.objects.select_related("account").filter(prefix=wanted).first()
    if key is None:
        raise UnknownKeyError(f"There is no API key with the prefix {wanted[:16]!r}")
    return key
