"""Metering's exceptions.

    MeteringError
    ├── QuotaExceededError          a hard cap leaves no room for the request
    ├── RateLimitedError            too much for a minute, or too many at once
    ├── LimitsUnavailableError      Redis does not answer: the use so far is unknown
    ├── LedgerUnavailableError      the database does not answer: nothing was reserved
    ├── DirectoryUnavailableError   the key cannot be checked now: never a 401
    ├── KeyRefusedError             the key that was sent is no good
    │   ├── InvalidKeyError         it is unknown
    │   ├── RevokedKeyError
    │   ├── ExpiredKeyError
    │   └── DisabledAccountError    its account is switched off
    ├── NoAccountError              a person who belongs to no account
    ├── UnknownNameError            an operator named an object that does not exist
    ├── ScopeNotHeldError           a key would grant more than it may do itself
    ├── MeteringValueError          a field cannot hold its value
    └── BenchError                  a file cannot be imported, or a sweep cannot be started
        ├── TargetError             a target did not answer, or not as its API does
        └── BenchValueError         a scenario, target or selection that there cannot be

Messages are written for people. Pure, so that pure code can raise these.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from metering.principal import LimitKind, LimitState


class MeteringError(Exception):
    """``str`` of it may be shown to the caller."""


@dataclass(eq=False)
class QuotaExceededError(MeteringError):
    """``needed`` and ``left`` are in ``unit``, ``tokens`` or ``micro_usd``."""

    message: str
    _: KW_ONLY
    budget: int
    unit: str
    needed: int
    left: int
    retry_after_s: float | None
    """``None`` where waiting does not help: for a balance, or a request over the whole cap."""
    is_reserved: bool = False
    """Only reservations of running requests exceed it, which settle in seconds."""
    owner: str = "account"
    """``key`` or ``account``."""


@dataclass(eq=False)
class RateLimitedError(MeteringError):
    message: str
    _: KW_ONLY
    kind: LimitKind
    subject: str
    """The key's prefix or the account."""
    limit: int
    retry_after_s: float | None
    """``None`` where waiting does not help."""
    state: LimitState | None = None


class LimitsUnavailableError(MeteringError):
    pass


class LedgerUnavailableError(MeteringError):
    pass


class DirectoryUnavailableError(MeteringError):
    pass


@dataclass(eq=False)
class KeyRefusedError(MeteringError):
    message: str
    _: KW_ONLY
    account: str = ""
    """The sender's, as ``key``, its public prefix; empty where the whole key was not shown."""
    key: str = ""


class InvalidKeyError(KeyRefusedError):
    pass


class RevokedKeyError(KeyRefusedError):
    pass


class ExpiredKeyError(KeyRefusedError):
    pass


class DisabledAccountError(KeyRefusedError):
    """A 401 as well: a 403 would imply that the key may be used for other requests."""


class NoAccountError(MeteringError):
    pass


class UnknownNameError(MeteringError):
    """``noun``: account, key, user, member, budget or request."""

    def __init__(self, noun: str, message: str) -> None:
        super().__init__(message)
        self.noun = noun


class ScopeNotHeldError(MeteringError):
    pass


class MeteringValueError(MeteringError):
    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class BenchError(MeteringError):
    pass


class TargetError(BenchError):
    def __init__(self, message: str, *, status: int = 0) -> None:
        """``status``: of the HTTP response; 0: none came."""
        super().__init__(message)
        self.status = status


class BenchValueError(BenchError, MeteringValueError):
    pass
