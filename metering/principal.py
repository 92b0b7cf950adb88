"""The identity of a caller, and the limits on it. Pure: no ORM, no clock, no I/O. Accounts are
named by their slug, keys by their public prefix, so that both are readable everywhere (logs,
metrics, the ledger, messages to neurons)."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Protocol


class Scope(StrEnum):
    INFERENCE = "inference"
    USAGE_READ = "usage:read"
    FLEET_READ = "fleet:read"
    FLEET_WRITE = "fleet:write"
    ACCOUNTS_READ = "accounts:read"
    ACCOUNTS_WRITE = "accounts:write"


ALL_SCOPES = frozenset(Scope)

ANONYMOUS_ACCOUNT = "anonymous"
"""Pays for callers without a key. Budgets and limits can be set on it."""
SHARED_ACCOUNT = "shared"
"""Pays for callers that send ``HELEXA_API_KEY``."""
BUILT_IN_ACCOUNTS = (ANONYMOUS_ACCOUNT, SHARED_ACCOUNT)


class NamedModel(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def aliases(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimits:
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent: int | None = None

    @property
    def is_limited(self) -> bool:
        return self.values != (None, None, None)

    @property
    def values(self) -> tuple[int | None, int | None, int | None]:
        """In the order of ``LIMIT_FIELDS``."""
        return self.requests_per_minute, self.tokens_per_minute, self.max_concurrent


LIMIT_FIELDS = tuple(each.name for each in fields(RateLimits))
"""Also the names of columns, JSON fields and form fields."""


class LimitKind(StrEnum):
    """In the order of ``LIMIT_FIELDS``."""

    REQUESTS = "rpm"
    TOKENS = "tpm"
    CONCURRENCY = "concurrency"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitStatus:
    """In ``reset_ms`` nothing counts against ``limit`` any more."""

    limit: int
    remaining: int
    reset_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitState:
    """The tighter of key and account; ``None``: no limit. ``now_ms`` is Redis' Unix time."""

    now_ms: int = 0
    requests: LimitStatus | None = None
    tokens: LimitStatus | None = None
    tokens_charged: int = field(default=0, compare=False)
    """The tokens that the request may use: as many as requested, or as the limits leave."""


NO_LIMITS = LimitState()


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """``key``: the API key's public prefix, or empty. ``models``: ``None`` for all; an alias stands
    for its present model. ``budgets``: ids of the hard caps on its key and its account."""

    account: str
    key: str = ""
    scopes: frozenset[Scope] = ALL_SCOPES
    models: frozenset[str] | None = None
    weight: int = 1
    is_anonymous: bool = False
    budgets: tuple[int, ...] = ()
    key_limits: RateLimits = field(default_factory=RateLimits)
    account_limits: RateLimits = field(default_factory=RateLimits)
    expires_unix_s: float | None = None
    names_end_user: bool = False
    may_leave_network: bool = True
    capture_until_unix_s: float | None = None
    is_self_test: bool = False
    """``serve``'s test of the model: neither billed nor counted."""

    def may_use(self, model: NamedModel) -> bool:
        return self.models is None or not self.models.isdisjoint((model.name, *model.aliases))

    @property
    def tokens_per_minute(self) -> int | None:
        limits = (self.key_limits.tokens_per_minute, self.account_limits.tokens_per_minute)
        return min((limit for limit in limits if limit is not None), default=None)

    def is_captured(self, now_unix_s: float) -> bool:
        return self.capture_until_unix_s is not None and now_unix_s < self.capture_until_unix_s

    def has(self, scope: Scope) -> bool:
        return scope in self.scopes


SELF_TEST = Principal(account=SHARED_ACCOUNT, is_self_test=True)
