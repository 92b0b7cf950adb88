"""The keys that playgrounds ask with: their user's own, and short-lived, so that budgets and limits
hold as for every other request."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from metering.models import Account, ApiKey
from metering.principal import ANONYMOUS_ACCOUNT, Scope
from metering.services import CreatedKey, key_create
from metering.usage.reader import Reader

KEY_NAME = "playground"
LIFETIME = timedelta(hours=8)


def accounts_for(reader: Reader) -> list[str]:
    """The accounts whose budgets the reader may ask from: their own first; operators have all."""
    own = reader.key_accounts
    if not reader.is_operator:
        return own
    others = Account.objects.filter(enabled=True).exclude(name__in=[*own, ANONYMOUS_ACCOUNT])
    return own + list(others.values_list("name", flat=True))


def playground_key_create(*, reader: Reader, account_name: str) -> CreatedKey:
    """For inference, until ``LIFETIME`` has passed. Raises ``Account.DoesNotExist``."""
    return key_create(
        actor=reader.actor,
        account=Account.objects.get(name=account_name),
        name=KEY_NAME,
        scopes=(Scope.INFERENCE,),
        expires_at=timezone.now() + LIFETIME,
    )


def is_playground_key(key: ApiKey) -> bool:
    """Such keys pass by themselves: lists of what people made are shorter without them."""
    return key.name == KEY_NAME and key.scopes == [str(Scope.INFERENCE)]
