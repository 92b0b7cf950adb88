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
    └── MeteringValueError          a field cannot hold its value

Messages are written for people. Pure, so that pure code can raise these.
"""

from __future__ import annotations

from metering.limits.state import LimitKind, LimitState


class MeteringError(Exception):
    """``str`` of it may be shown to the caller."""


class QuotaExceededError(MeteringError):
    """``retry_after_s`` is when the window ends; ``None`` where waiting does not help: for a
    balance, or a request over the whole cap. ``is_reserved``: only reservations of running requests
    exceed it, which settle in seconds. ``needed`` and ``left`` are in ``unit`` (``tokens`` or
    ``micro_usd``). ``owner``: ``key`` or ``account``."""

    def __init__(
        self,
        message: str,
        *,
        budget: int,
        unit: str,
        needed: int,
        left: int,
        retry_after_s: float | None,
        is_reserved: bool = False,
        owner: str = "account",
    ) -> None:
        super().__init__(message)
        self.owner = owner
        self.is_reserved = is_reserved
        self.budget = budget
        self.unit = unit
        self.needed = needed
        self.left = left
        self.retry_after_s = retry_after_s


class RateLimitedError(MeteringError):
    """``subject`` is the key's prefix or the account whose ``limit`` it was. ``retry_after_s`` is
    ``None`` where waiting does not help. ``state`` is the caller's remaining limits; ``None`` where
    the check did not need it."""

    def __init__(
        self,
        message: str,
        *,
        kind: LimitKind,
        subject: str,
        limit: int,
        retry_after_s: float | None,
        state: LimitState | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.subject = subject
        self.limit = limit
        self.retry_after_s = retry_after_s
        self.state = state


class LimitsUnavailableError(MeteringError):
    pass


class LedgerUnavailableError(MeteringError):
    pass


class DirectoryUnavailableError(MeteringError):
    pass


class KeyRefusedError(MeteringError):
    """``account`` and ``key`` (its public prefix) are the sender's, empty where the whole key was
    not shown."""

    def __init__(self, message: str, *, account: str = "", key: str = "") -> None:
        super().__init__(message)
        self.account = account
        self.key = key


class InvalidKeyError(KeyRefusedError):
    pass


class RevokedKeyError(KeyRefusedError):
    pass


class ExpiredKeyError(KeyRefusedError):
    pass


class DisabledAccountError(KeyRefusedError):
    """A 401 as well: the key is useless, whatever is requested with it. A 403 would imply that it
    may be used for other requests."""


class NoAccountError(MeteringError):
    pass


class UnknownNameError(MeteringError):
    """``noun``: account, key, user, member (a person who is not in that account), budget or
    request."""

    def __init__(self, noun: str, message: str) -> None:
        super().__init__(message)
        self.noun = noun


class ScopeNotHeldError(MeteringError):
    pass


class MeteringValueError(MeteringError):
    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
