"""The headers' names and forms, as OpenAI and Anthropic document them."""

from __future__ import annotations

import datetime
import re

from hypothesis import given
from hypothesis import strategies as st

from metering.limits.state import (
    NO_LIMITS,
    LimitState,
    LimitStatus,
    anthropic_headers,
    duration,
    openai_headers,
)
from tests.cases import each_case

STATE = LimitState(
    now_ms=1_795_345_071_250,
    requests=LimitStatus(limit=60, remaining=59, reset_ms=1000),
    tokens=LimitStatus(limit=150_000, remaining=149_984, reset_ms=360_000),
)
DURATION = re.compile(
    r"(?:(?P<h>\d+)h)?(?:(?P<m>\d+)m(?!s))?(?:(?P<s>\d+(?:\.\d+)?)s)?(?:(?P<ms>\d+)ms)?"
)


def test_openai() -> None:
    assert openai_headers(STATE) == [
        (b"x-ratelimit-limit-requests", b"60"),
        (b"x-ratelimit-remaining-requests", b"59"),
        (b"x-ratelimit-reset-requests", b"1s"),
        (b"x-ratelimit-limit-tokens", b"150000"),
        (b"x-ratelimit-remaining-tokens", b"149984"),
        (b"x-ratelimit-reset-tokens", b"6m0s"),
    ]


def test_anthropic() -> None:
    assert anthropic_headers(STATE) == [
        (b"anthropic-ratelimit-requests-limit", b"60"),
        (b"anthropic-ratelimit-requests-remaining", b"59"),
        (b"anthropic-ratelimit-requests-reset", b"2026-11-22T10:57:53Z"),
        (b"anthropic-ratelimit-tokens-limit", b"150000"),
        (b"anthropic-ratelimit-tokens-remaining", b"149984"),
        (b"anthropic-ratelimit-tokens-reset", b"2026-11-22T11:03:52Z"),
    ]


def test_the_moment_is_the_one_meant() -> None:
    header = dict(anthropic_headers(STATE))[b"anthropic-ratelimit-requests-reset"].decode()
    moment = datetime.datetime.fromisoformat(header)
    assert moment.timestamp() == 1_795_345_073  # 1 s after …071.25, rounded up


def test_no_header_names_limits_that_are_not_there() -> None:
    assert openai_headers(NO_LIMITS) == anthropic_headers(NO_LIMITS) == []
    only_requests = LimitState(now_ms=0, requests=STATE.requests)
    assert len(openai_headers(only_requests)) == len(anthropic_headers(only_requests)) == 3


@each_case(
    ("milliseconds", "written"),
    [
        (0, "0s"),
        (20, "20ms"),
        (1000, "1s"),
        (1500, "1.5s"),
        (59_999, "59.999s"),
        (60_000, "1m0s"),
        (360_000, "6m0s"),
        (3_661_020, "1h1m1.02s"),
    ],
)
def test_durations(milliseconds: int, written: str) -> None:
    assert duration(milliseconds) == written


@given(st.integers(0, 10**10))
def test_durations_can_be_read_back(milliseconds: int) -> None:
    parts = DURATION.fullmatch(duration(milliseconds))
    assert parts is not None
    read = {unit: float(text) for unit, text in parts.groupdict(default="0").items()}
    total_ms = read["h"] * 3_600_000 + read["m"] * 60_000 + read["s"] * 1000 + read["ms"]
    assert round(total_ms) == milliseconds
