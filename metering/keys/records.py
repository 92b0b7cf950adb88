"""Cached keys, accounts and people, for identifying callers. Pure: no ORM, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from metering.errors import (
    DisabledAccountError,
    ExpiredKeyError,
    InvalidKeyError,
    NoAccountError,
    RevokedKeyError,
)
from metering.keys.api_key import is_key_of
from metering.principal import ANONYMOUS_ACCOUNT, Principal, RateLimits, Scope

SCOPES_BY_ROLE = {
    "owner": frozenset({Scope.INFERENCE, Scope.USAGE_READ}),
    "member": frozenset({Scope.INFERENCE, Scope.USAGE_READ}),
    "viewer": frozenset({Scope.USAGE_READ}),
}
"""A person with several accounts who names none uses that with the first of these roles."""
ANONYMOUS_SCOPES = frozenset({Scope.INFERENCE})
SHARED_SCOPES = frozenset({Scope.INFERENCE, Scope.USAGE_READ, Scope.FLEET_READ})


class Person(Protocol):
    @property
    def is_staff(self) -> bool: ...
    @property
    def is_superuser(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountRecord:
    name: str
    enabled: bool = True
    weight: int = 1
    limits: RateLimits = field(default_factory=RateLimits)
    capture_until_unix_s: float | None = None
    budgets: tuple[int, ...] = ()

    def principal(self) -> Principal:
        """A caller without a key of their own. Raises ``DisabledAccountError``."""
        if self.name == ANONYMOUS_ACCOUNT:
            return self.asking(ANONYMOUS_SCOPES, is_anonymous=True)
        return self.asking(SHARED_SCOPES)

    def asking(self, scopes: frozenset[Scope], *, is_anonymous: bool = False) -> Principal:
        """Raises ``DisabledAccountError``."""
        if not self.enabled:
            raise DisabledAccountError(f"The account {self.name} is disabled.", account=self.name)
        return Principal(
            account=self.name,
            scopes=scopes,
            weight=self.weight,
            is_anonymous=is_anonymous,
            budgets=self.budgets,
            account_limits=self.limits,
            capture_until_unix_s=self.capture_until_unix_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    digest: str = field(repr=False)
    principal: Principal
    account_enabled: bool = True
    is_revoked: bool = False

    def principal_for(self, presented_key: str, *, secret: bytes, now_unix_s: float) -> Principal:
        """Raises ``KeyRefusedError``. Only the holder of the key gets the precise reason."""
        if not is_key_of(presented_key, self.digest, secret):
            raise InvalidKeyError("The API key is not valid.")
        return self.principal_now(now_unix_s)

    def principal_now(self, now_unix_s: float) -> Principal:
        """Raises ``KeyRefusedError``."""
        account, key = self.principal.account, self.principal.key
        if self.is_revoked:
            raise RevokedKeyError(f"The API key {key} was revoked.", account=account, key=key)
        if not self.account_enabled:
            raise DisabledAccountError(
                f"The account {account} of the API key is disabled.", account=account, key=key
            )
        expires_unix_s = self.principal.expires_unix_s
        if expires_unix_s is not None and now_unix_s >= expires_unix_s:
            raise ExpiredKeyError(f"The API key {key} has expired.", account=account, key=key)
        return self.principal


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipRecord:
    account: AccountRecord
    role: str


def person_principal(
    person: Person, memberships: tuple[MembershipRecord, ...], account: str | None
) -> Principal:
    """``account``: one of theirs; ``None``: that with the highest role, the first by name of
    several. Raises ``NoAccountError``, ``DisabledAccountError``."""
    theirs = [one for one in memberships if account is None or one.account.name == account]
    if not theirs:
        raise NoAccountError(
            "You belong to no account." if account is None else f"You are not in {account}."
        )
    ranks = list(SCOPES_BY_ROLE)
    theirs.sort(key=lambda one: (not one.account.enabled, ranks.index(one.role), one.account.name))
    chosen = theirs[0]
    scopes = SCOPES_BY_ROLE[chosen.role]
    if person.is_staff:
        scopes |= {Scope.USAGE_READ, Scope.FLEET_READ}
    if person.is_superuser:
        scopes |= {Scope.FLEET_WRITE}
    return chosen.account.asking(scopes)
