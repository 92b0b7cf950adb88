"""A caller's remaining limits: plain data for errors, and its headers.

``Retry-After`` is not here: it goes with every refusal that has one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum


class LimitKind(StrEnum):
    """In the order of ``principal.LIMIT_FIELDS``."""

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
    """The caller's remaining limits, the tighter of its key and its account; ``None`` without a
    limit. ``now_ms`` is Redis' time in Unix milliseconds."""

    now_ms: int = 0
    requests: LimitStatus | None = None
    tokens: LimitStatus | None = None
    tokens_charged: int = field(default=0, compare=False)
    """The tokens that the request may use: as many as requested, or as the limits leave."""


NO_LIMITS = LimitState()


Headers = list[tuple[bytes, bytes]]


def openai_headers(state: LimitState) -> Headers:
    """https://platform.openai.com/docs/guides/rate-limits (headers): resets are durations, until
    the limit is whole again."""
    return [
        (f"x-ratelimit-{field}-{name}".encode(), value.encode())
        for name, status in _limited(state)
        for field, value in (
            ("limit", str(status.limit)),
            ("remaining", str(status.remaining)),
            ("reset", duration(status.reset_ms)),
        )
    ]


def anthropic_headers(state: LimitState) -> Headers:
    """https://docs.anthropic.com/en/api/rate-limits (response headers): resets are moments in
    RFC 3339's form, when the limit is whole again."""
    return [
        (f"anthropic-ratelimit-{name}-{field}".encode(), value.encode())
        for name, status in _limited(state)
        for field, value in (
            ("limit", str(status.limit)),
            ("remaining", str(status.remaining)),
            ("reset", _reset_at(status, state.now_ms)),
        )
    ]


def _limited(state: LimitState) -> list[tuple[str, LimitStatus]]:
    limits = (("requests", state.requests), ("tokens", state.tokens))
    return [(name, status) for name, status in limits if status is not None]


def duration(milliseconds: int) -> str:
    """Formats a duration as Go does: ``20ms``, ``1s``, ``1.5s``, ``6m0s``."""
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest_ms = divmod(milliseconds, 60_000)
    seconds = f"{rest_ms / 1000:.3f}".rstrip("0").rstrip(".")
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{seconds}s"
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


def _reset_at(status: LimitStatus, now_ms: int) -> str:
    unix_s = -(-(now_ms + status.reset_ms) // 1000)
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
