"""What counts mean, without Redis, and the headers as OpenAI and Anthropic document them."""

from __future__ import annotations

import pytest

from metering.errors import RateLimitedError
from metering.limits.rules import (
    PARTS,
    Counts,
    Subject,
    SubjectKind,
    limit_state,
    refusal,
    refuse_impossible,
    subjects_of,
)
from metering.limits.state import (
    NO_LIMITS,
    LimitKind,
    LimitState,
    LimitStatus,
    anthropic_headers,
    duration,
    openai_headers,
)
from metering.principal import Principal, RateLimits
from tests.cases import each_case

KEY = Subject(SubjectKind.KEY, "hx-abc", RateLimits(requests_per_minute=60, tokens_per_minute=1000))
ACCOUNT = Subject(SubjectKind.ACCOUNT, "lab", RateLimits(tokens_per_minute=600, max_concurrent=4))


def test_the_tighter_of_key_and_account_is_reported() -> None:
    counts = [Counts(3 * PARTS, 700 * PARTS, 0), Counts(0, 100 * PARTS, 1)]
    state = limit_state([KEY, ACCOUNT], counts, now_ms=5)
    assert state.requests == LimitStatus(limit=60, remaining=57, reset_ms=3000)
    assert state.tokens == LimitStatus(limit=1000, remaining=300, reset_ms=42_000)
    counts = [Counts(0, 200 * PARTS, 0), Counts(0, 500 * PARTS + 1, 1)]
    state = limit_state([KEY, ACCOUNT], counts, now_ms=5)
    assert state.tokens == LimitStatus(limit=600, remaining=99, reset_ms=50_001)
    owed = limit_state([KEY], [Counts(0, 1500 * PARTS, 0)], now_ms=5)  # more than the bound
    assert owed.tokens == LimitStatus(limit=1000, remaining=0, reset_ms=90_000)


@each_case(
    ("counts", "tokens", "kind", "subject", "retry_after_s"),
    [
        # A whole minute of requests is owed: one more fits when one has drained.
        ((Counts(60 * PARTS, 0, 0), Counts(0, 0, 0)), 1, LimitKind.REQUESTS, "hx-abc", 1.0),
        ((Counts(59 * PARTS + 30, 0, 0), Counts(0, 0, 0)), 1, LimitKind.REQUESTS, "hx-abc", 0.001),
        # The key's 1,000 have room in 6 s, the account's 600 in 30 s.
        (
            (Counts(0, 1000 * PARTS, 0), Counts(0, 600 * PARTS, 0)),
            100,
            LimitKind.TOKENS,
            "lab",
            10.0,
        ),
        ((Counts(0, 0, 0), Counts(0, 0, 4)), 1, LimitKind.CONCURRENCY, "lab", 1.0),
    ],
)
def test_the_limit_that_takes_longest_is_named(
    counts: tuple[Counts, Counts], tokens: int, kind: LimitKind, subject: str, retry_after_s: float
) -> None:
    error = refusal([KEY, ACCOUNT], counts, tokens=tokens, now_ms=7)
    assert (error.kind, error.subject, error.retry_after_s) == (kind, subject, retry_after_s)
    assert error.state is not None
    assert error.state.now_ms == 7
    assert subject in str(error)


def test_what_never_fits_is_refused_for_good() -> None:
    refuse_impossible([KEY, ACCOUNT], 600)
    with pytest.raises(RateLimitedError) as refused:
        refuse_impossible([KEY, ACCOUNT], 601)
    error = refused.value
    assert (error.kind, error.subject, error.limit) == (LimitKind.TOKENS, "lab", 600)
    assert error.retry_after_s is None and "601" in str(error) and "never" in str(error)
    for limits in (RateLimits(requests_per_minute=0), RateLimits(max_concurrent=0)):
        with pytest.raises(RateLimitedError) as refused:
            refuse_impossible([Subject(SubjectKind.KEY, "hx-abc", limits)], 0)
        assert refused.value.retry_after_s is None
    anonymous = Principal(account="anonymous", account_limits=RateLimits(max_concurrent=2))
    assert [str(subject) for subject in subjects_of(anonymous)] == ["account anonymous"]
    assert subjects_of(Principal(account="lab", key="hx-abc")) == ()


STATE = LimitState(
    now_ms=1_795_345_071_250,
    requests=LimitStatus(limit=60, remaining=59, reset_ms=1000),
    tokens=LimitStatus(limit=150_000, remaining=149_984, reset_ms=360_000),
)


def test_headers_as_openai_and_anthropic_document_them() -> None:
    assert openai_headers(STATE) == [
        (b"x-ratelimit-limit-requests", b"60"),
        (b"x-ratelimit-remaining-requests", b"59"),
        (b"x-ratelimit-reset-requests", b"1s"),
        (b"x-ratelimit-limit-tokens", b"150000"),
        (b"x-ratelimit-remaining-tokens", b"149984"),
        (b"x-ratelimit-reset-tokens", b"6m0s"),
    ]
    assert anthropic_headers(STATE) == [
        (b"anthropic-ratelimit-requests-limit", b"60"),
        (b"anthropic-ratelimit-requests-remaining", b"59"),
        (b"anthropic-ratelimit-requests-reset", b"2026-11-22T10:57:53Z"),  # 1 s after, rounded up
        (b"anthropic-ratelimit-tokens-limit", b"150000"),
        (b"anthropic-ratelimit-tokens-remaining", b"149984"),
        (b"anthropic-ratelimit-tokens-reset", b"2026-11-22T11:03:52Z"),
    ]
    assert openai_headers(NO_LIMITS) == anthropic_headers(NO_LIMITS) == []
    only_requests = LimitState(now_ms=0, requests=STATE.requests)
    assert len(openai_headers(only_requests)) == len(anthropic_headers(only_requests)) == 3


@each_case(
    ("milliseconds", "written"),
    [
        (0, "0s"),
        (20, "20ms"),
        (999, "999ms"),
        (1000, "1s"),
        (1500, "1.5s"),
        (59_999, "59.999s"),
        (60_000, "1m0s"),
        (360_000, "6m0s"),
        (3_600_000, "1h0m0s"),
        (3_661_020, "1h1m1.02s"),
    ],
)
def test_durations(milliseconds: int, written: str) -> None:
    assert duration(milliseconds) == written
