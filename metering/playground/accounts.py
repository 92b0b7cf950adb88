"""Whose budgets a playground asks from, and the keys that playgrounds had before they went by the
login."""

from __future__ import annotations

from django.db.models import QuerySet

from metering.keys.store import DatabaseKeyStore
from metering.models import Account, ApiKey
from metering.principal import ANONYMOUS_ACCOUNT, Principal, Scope
from metering.usage.reader import Reader

KEY_NAME = "playground"
"""Earlier versions made a short-lived key of this name for each opened tab. The rows stay."""


def accounts_for(reader: Reader) -> list[str]:
    """The accounts whose budgets the reader may ask from: their own first; operators have all."""
    own = reader.key_accounts
    if not reader.is_operator:
        return own
    others = Account.objects.filter(enabled=True).exclude(name__in=[*own, ANONYMOUS_ACCOUNT])
    return own + list(others.values_list("name", flat=True))


def playground_principal(account_name: str) -> Principal:
    """Who asks from one of ``accounts_for``: by inference alone. Raises
    ``DisabledAccountError``."""
    record = DatabaseKeyStore().account(account_name)
    record.ensure_enabled()
    return Principal(
        account=record.name,
        scopes=frozenset({Scope.INFERENCE}),
        weight=record.weight,
        budgets=record.budgets,
        account_limits=record.limits,
        capture_until_unix_s=record.capture_until_unix_s,
    )


def without_playground_keys(keys: QuerySet[ApiKey]) -> QuerySet[ApiKey]:
    return keys.exclude(name=KEY_NAME, scopes=[str(Scope.INFERENCE)])


def is_playground_key(key: ApiKey) -> bool:
    """Such keys passed by themselves: lists of what people made are shorter without them."""
    return key.name == KEY_NAME and key.scopes == [str(Scope.INFERENCE)]
