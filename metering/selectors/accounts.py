"""Reads of accounts and keys by the names that people type."""

from __future__ import annotations

from django.contrib.auth.models import User

from helexa_site.program import program
from metering.errors import (
    UnknownAccountError,
    UnknownBudgetError,
    UnknownKeyError,
    UnknownMemberError,
    UnknownUserError,
)
from metering.keys.api_key import IMPORTED_MARK, PREFIX_MARK, prefix_of
from metering.models import Account, ApiKey, Budget, Membership


def account_find(name: str) -> Account:
    """Raises ``UnknownAccountError``."""
    account = Account.objects.filter(name=name).first()
    if account is None:
        raise UnknownAccountError(
            f"There is no account named {name!r}. Make one: {program()} accounts create NAME"
        )
    return account


def key_find(prefix: str) -> ApiKey:
    """Finds a key by its prefix, or by the whole key, of which only the prefix is used. Raises
    ``UnknownKeyError``, whose message never holds a whole key."""
    wanted = prefix_of(prefix) or prefix
    key = ApiKey.objects.select_related("account").filter(prefix=wanted).first()
    if key is None:
        is_prefix = wanted.startswith((PREFIX_MARK, IMPORTED_MARK))
        name = f"the prefix {wanted[:16]!r}" if is_prefix else "that prefix"
        raise UnknownKeyError(f"There is no API key with {name}")
    return key


def user_find(name: str) -> User:
    """Raises ``UnknownUserError``."""
    user = User.objects.filter(username=name).first()
    if user is None:
        raise UnknownUserError(f"Nobody logs in as {name!r}: the admin's Users page adds people")
    return user


def member_find(account: str, user: str) -> Membership:
    """Raises ``UnknownMemberError``."""
    members = Membership.objects.select_related("user", "account")
    member = members.filter(account=account, user__username=user).first()
    if member is None:
        raise UnknownMemberError(f"{user!r} is not in the account {account!r}")
    return member


def budget_find(pk: int) -> Budget:
    """Raises ``UnknownBudgetError``."""
    budget = Budget.objects.filter(pk=pk).first()
    if budget is None:
        raise UnknownBudgetError(f"There is no budget {pk}")
    return budget
