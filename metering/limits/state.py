"""A caller's remaining limits: plain data that errors can carry."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class LimitKind(StrEnum):
    REQUESTS = "rpm"
    TOKENS = "tpm"
    CONCURRENCY = "concurrency"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitStatus:
    """``reset_ms`` from now nothing counts against ``limit`` any more."""

    limit: int
    remaining: int
    reset_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitState:
    """What its caller has left, the tighter of its key and its account; ``None`` without a limit.
    ``now_ms`` is Redis' time in Unix milliseconds."""

    now_ms: int = 0
    requests: LimitStatus | None = None
    tokens: LimitStatus | None = None
    tokens_charged: int = field(default=0, compare=False)
    """The tokens that the request may use: as many as were asked for, or what the limits leave of
    them."""


NO_LIMITS = LimitState()
