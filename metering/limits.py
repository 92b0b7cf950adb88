"""The limits of a request, the meaning of the counts in Redis, and the headers of what remains.
Pure: no Redis, no clock.

A limit per minute is a bucket: a whole minute's worth may be used at once, and it refills evenly.
The use is counted as a debt that drains. One request or token is ``PARTS`` of debt, so that a limit
of N a minute drains N parts a millisecond, in whole numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from metering.errors import RateLimitedError
from metering.principal import LimitKind, LimitState, LimitStatus, Principal, RateLimits

PARTS = 60_000
"""Milliseconds in a minute; the script's ``MINUTE_MS``."""
CONCURRENCY_RETRY_AFTER_S = 1.0
"""The end of a running request is not known in advance."""


class SubjectKind(StrEnum):
    KEY = "key"
    ACCOUNT = "account"


@dataclass(frozen=True, slots=True)
class Subject:
    """``name`` is the key's prefix or the account's slug."""

    kind: SubjectKind
    name: str
    limits: RateLimits

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Counts:
    """As the script returns them; 0 where the subject has no such limit."""

    requests_debt: int
    tokens_debt: int
    num_open: int


def subjects_of(principal: Principal) -> tuple[Subject, ...]:
    subjects = []
    if principal.key and principal.key_limits.is_limited:
        subjects.append(Subject(SubjectKind.KEY, principal.key, principal.key_limits))
    if principal.account_limits.is_limited:
        subjects.append(Subject(SubjectKind.ACCOUNT, principal.account, principal.account_limits))
    return tuple(subjects)


def refuse_impossible(subjects: Sequence[Subject], tokens: int) -> None:
    """Raises ``RateLimitedError`` for a request that does not fit into an empty minute."""
    for subject in subjects:
        for kind, limit in _limits(subject):
            needed = tokens if kind is LimitKind.TOKENS else 1
            if needed > limit:
                raise RateLimitedError(
                    _impossible(subject, kind, limit, needed),
                    kind=kind,
                    subject=subject.name,
                    limit=limit,
                    retry_after_s=None,
                )


def limit_state(
    subjects: Sequence[Subject],
    counts: Sequence[Counts],
    *,
    now_ms: int,
    tokens_charged: int = 0,
) -> LimitState:
    requests, tokens = [], []
    for subject, count in zip(subjects, counts, strict=True):
        if (limit := subject.limits.requests_per_minute) is not None:
            requests.append(_status(limit, count.requests_debt))
        if (limit := subject.limits.tokens_per_minute) is not None:
            tokens.append(_status(limit, count.tokens_debt))
    return LimitState(
        now_ms=now_ms,
        requests=_tightest(requests),
        tokens=_tightest(tokens),
        tokens_charged=tokens_charged,
    )


def refusal(
    subjects: Sequence[Subject], counts: Sequence[Counts], *, tokens: int, now_ms: int
) -> RateLimitedError:
    """The refusal names the limit that takes longest."""
    exceeded = [
        (wait_s, kind, limit, subject, count)
        for subject, count in zip(subjects, counts, strict=True)
        for kind, limit in _limits(subject)
        if (wait_s := _wait_s(kind, limit, count, tokens)) > 0
    ]
    assert exceeded, "the script refused a request that no limit forbids"
    wait_s, kind, limit, subject, count = max(exceeded, key=lambda each: each[0])
    return RateLimitedError(
        _reached(subject, kind, limit, count, tokens=tokens, wait_s=wait_s),
        kind=kind,
        subject=subject.name,
        limit=limit,
        retry_after_s=wait_s,
        state=limit_state(subjects, counts, now_ms=now_ms),
    )


def _limits(subject: Subject) -> list[tuple[LimitKind, int]]:
    limits = zip(LimitKind, subject.limits.values, strict=True)
    return [(kind, limit) for kind, limit in limits if limit is not None]


def _wait_s(kind: LimitKind, limit: int, count: Counts, tokens: int) -> float:
    if kind is LimitKind.CONCURRENCY:
        return CONCURRENCY_RETRY_AFTER_S if count.num_open >= limit else 0.0
    is_tokens = kind is LimitKind.TOKENS
    debt = count.tokens_debt if is_tokens else count.requests_debt
    needed = tokens if is_tokens else 1
    return -((limit * PARTS - debt - needed * PARTS) // limit) / 1000


def _status(limit: int, debt: int) -> LimitStatus:
    return LimitStatus(
        limit=limit, remaining=max(0, limit - -(-debt // PARTS)), reset_ms=-(-debt // limit)
    )


def _tightest(statuses: Sequence[LimitStatus]) -> LimitStatus | None:
    return min(statuses, key=lambda each: (each.remaining, -each.reset_ms), default=None)


def _impossible(subject: Subject, kind: LimitKind, limit: int, needed: int) -> str:
    if kind is LimitKind.TOKENS:
        return (
            f"This request may take {needed:,} tokens, and the {subject} may use {limit:,} a "
            "minute, so it can never be served. Shorten the prompt or ask for fewer tokens."
        )
    return f"The {subject} may send no requests: its limit is {limit}."


def _reached(
    subject: Subject, kind: LimitKind, limit: int, count: Counts, *, tokens: int, wait_s: float
) -> str:
    if kind is LimitKind.CONCURRENCY:
        reason = f"{limit:,} requests at once, and as many are running"
    elif kind is LimitKind.REQUESTS:
        reason = f"{limit:,} requests per minute"
    else:
        left = _status(limit, count.tokens_debt).remaining
        reason = (
            f"{limit:,} tokens per minute; {left:,} are left and this request may take {tokens:,}"
        )
    return f"Rate limit reached for the {subject}: {reason}. Try again in {wait_s:.3g} s."


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
