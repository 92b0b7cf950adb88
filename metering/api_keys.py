"""API keys: their form, making and recognising them; and the cached records of keys, accounts and
people, which identify callers. Pure: no ORM, no clock, no I/O.

    hx-4fZ81kQm0b - Jw3…   (32)
    └─ prefix ──┘   └ secret ┘

The prefix is public: it names the key in lists, logs and the ledger. Of the whole key only a digest
is stored, keyed by Django's SECRET_KEY, so that the database alone proves nothing. A fast digest is
enough: the secret has 190 bits.

A key that an operator chose elsewhere has another form. Its public prefix is computed from it:

    sk-team-… ─▶ im- and 13 digits of a keyed hash, which the database alone cannot reproduce
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from metering.errors import (
    DisabledAccountError,
    ExpiredKeyError,
    InvalidKeyError,
    NoAccountError,
    RevokedKeyError,
)
from metering.principal import ANONYMOUS_ACCOUNT, Principal, RateLimits, Scope

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractUser

BASE62 = string.digits + string.ascii_letters
PREFIX_MARK = "hx-"
NUM_PREFIX_CHARS = 10
NUM_SECRET_CHARS = 32
KEY_FORM = re.compile(r"(hx-[0-9A-Za-z]{10})-[0-9A-Za-z]{32}", re.ASCII)
IMPORTED_MARK = "im-"
NUM_IMPORTED_DIGITS = 13
IMPORTED_FORM = re.compile(r"[\x21-\x7e]{8,200}", re.ASCII)
IMPORTED_PURPOSE = b"metering.keys: prefix of an imported key: "
DIGEST_PURPOSE = b"metering.keys: digest of an API key"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """``key`` is shown to a person once and not stored."""

    prefix: str
    key: str = field(repr=False)


def make_key() -> NewKey:
    prefix = PREFIX_MARK + _random_word(NUM_PREFIX_CHARS)
    return NewKey(prefix=prefix, key=f"{prefix}-{_random_word(NUM_SECRET_CHARS)}")


def prefix_of(presented_key: str) -> str | None:
    match = KEY_FORM.fullmatch(presented_key)
    return None if match is None else match[1]


def imported_prefix(presented_key: str, secret: bytes) -> str:
    digits = hmac.digest(secret, IMPORTED_PURPOSE + presented_key.encode(), "sha256").hex()
    return IMPORTED_MARK + digits[:NUM_IMPORTED_DIGITS]


def import_problem(key: str) -> str | None:
    if prefix_of(key) is not None:
        return "This has the form of helexa's own keys, which are made, not imported"
    if not IMPORTED_FORM.fullmatch(key):
        return "A key has 8 to 200 printable ASCII characters and no spaces"
    return None


def digest_secret(secret_key: str) -> bytes:
    return hmac.digest(secret_key.encode(), DIGEST_PURPOSE, hashlib.sha256)


def digest_of(key: str, secret: bytes) -> str:
    """``secret`` is from ``digest_secret``. 64 hexadecimal digits."""
    return hmac.digest(secret, key.encode(), "sha256").hex()


def is_key_of(presented_key: str, digest: str, secret: bytes) -> bool:
    return hmac.compare_digest(digest_of(presented_key, secret), digest)


def _random_word(num_chars: int) -> str:
    return "".join(secrets.choice(BASE62) for _ in range(num_chars))


SCOPES_BY_ROLE = {
    "owner": frozenset({Scope.INFERENCE, Scope.USAGE_READ}),
    "member": frozenset({Scope.INFERENCE, Scope.USAGE_READ}),
    "viewer": frozenset({Scope.USAGE_READ}),
}
"""A person with several accounts who names none uses that with the first of these roles."""
ANONYMOUS_SCOPES = frozenset({Scope.INFERENCE})
SHARED_SCOPES = frozenset({Scope.INFERENCE, Scope.USAGE_READ, Scope.FLEET_READ})


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountRecord:
    name: str
    enabled: bool = True
    weight: int = 1
    limits: RateLimits = field(default_factory=RateLimits)
    capture_until_unix_s: float | None = None
    budgets: tuple[int, ...] = ()

    def principal(self) -> Principal:
        """Raises ``DisabledAccountError``."""
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
    person: AbstractUser, memberships: tuple[MembershipRecord, ...], account: str | None
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
