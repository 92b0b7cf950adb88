"""What counts mean, without Redis."""

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
from metering.limits.state import LimitKind, LimitStatus
from metering.principal import Principal, RateLimits
from tests.cases import each_case

KEY = Subject(SubjectKind.KEY, "hx-abc", RateLimits(requests_per_minute=60, tokens_per_minute=1000))
ACCOUNT = Subject(SubjectKind.ACCOUNT, "lab", RateLimits(tokens_per_minute=600, max_concurrent=4))


def test_subjects_are_those_with_limits() -> None:
    unlimited = Principal(account="lab", key="hx-abc")
    assert subjects_of(unlimited) == ()
    both = Principal(
        account="lab", key="hx-abc", key_limits=KEY.limits, account_limits=ACCOUNT.limits
    )
    assert subjects_of(both) == (KEY, ACCOUNT)
    anonymous = Principal(account="anonymous", account_limits=RateLimits(max_concurrent=2))
    assert [str(subject) for subject in subjects_of(anonymous)] == ["account anonymous"]


def test_the_tighter_of_key_and_account_is_reported() -> None:
    counts = [Counts(3 * PARTS, 700 * PARTS, 0), Counts(0, 100 * PARTS, 1)]
    state = limit_state([KEY, ACCOUNT], counts, now_ms=5)
    assert state.requests == LimitStatus(limit=60, remaining=57, reset_ms=3000)
    assert state.tokens == LimitStatus(limit=1000, remaining=300, reset_ms=42_000)
    counts = [Counts(0, 200 * PARTS, 0), Counts(0, 500 * PARTS + 1, 1)]
    state = limit_state([KEY, ACCOUNT], counts, now_ms=5)
    assert state.tokens == LimitStatus(limit=600, remaining=99, reset_ms=50_001)


def test_more_than_the_limit_is_owed_after_a_request_used_more_than_its_bound() -> None:
    state = limit_state([KEY], [Counts(0, 1500 * PARTS, 0)], now_ms=5)
    assert state.tokens == LimitStatus(limit=1000, remaining=0, reset_ms=90_000)


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


def test_a_request_bigger_than_a_minute_is_refused_for_good() -> None:
    refuse_impossible([KEY, ACCOUNT], 600)
    with pytest.raises(RateLimitedError) as refused:
        refuse_impossible([KEY, ACCOUNT], 601)
    error = refused.value
    assert (error.kind, error.subject, error.limit) == (LimitKind.TOKENS, "lab", 600)
    assert error.retry_after_s is None
    assert "601" in str(error)
    assert "never" in str(error)


@each_case("limits", [RateLimits(requests_per_minute=0), RateLimits(max_concurrent=0)])
def test_a_limit_of_nothing_lets_nothing_through(limits: RateLimits) -> None:
    with pytest.raises(RateLimitedError) as refused:
        refuse_impossible([Subject(SubjectKind.KEY, "hx-abc", limits)], 0)
    assert refused.value.retry_after_s is None
