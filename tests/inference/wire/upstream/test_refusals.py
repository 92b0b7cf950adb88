"""An upstream's errors as failures of ours."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from inference.wire.errors import RequestFailedError
from inference.wire.upstream.refusals import MAX_MESSAGE_CHARACTERS, failure_in_stream, failure_of
from tests.cases import each_case

NOW = "Thu, 26 Nov 2026 10:00:00 GMT"
HEADERS = st.text(max_size=6) | st.none() | st.sampled_from([NOW, NOW.replace("GMT", "+9999")])


@given(st.integers(400, 599), st.binary(max_size=60), HEADERS, HEADERS)
def test_any_error_is_a_failure(
    status: int, body: bytes, retry_after: str | None, date: str | None
) -> None:
    failure = failure_of("box", status, body, retry_after=retry_after, date=date, secret="s3cret")
    error = RequestFailedError(failure)
    assert error.status in (400, 429, 502, 503)
    assert failure.message.isprintable()


@each_case(
    ("retry_after", "date", "seconds"),
    [
        ("7", None, 7),
        ("9e9", None, 3_600),
        ("-7", None, None),
        ("Thu, 26 Nov 2026 10:00:30 GMT", NOW, 30),
        ("Thu, 26 Nov 2026 09:00:00 GMT", NOW, 0),
        ("Fri, 27 Nov 2026 10:00:00 GMT", NOW, 3_600),
        ("Thu, 26 Nov 2026 10:00:30 GMT", None, None),
        ("soon", NOW, None),
    ],
)
def test_a_retry_after_is_seconds_or_a_date(
    retry_after: str, date: str | None, seconds: float | None
) -> None:
    failure = failure_of("box", 429, b"", retry_after=retry_after, date=date, secret="")
    assert failure.retry_after_s == seconds


@each_case(
    ("error", "code"),
    [
        ({"code": 429}, "rate_limit_exceeded"),
        ({"type": "overloaded_error"}, "upstream_unavailable"),
        ({"code": "invalid_request_error", "message": "no"}, "upstream_refused"),
        ({"status": 400, "message": "The prompt is too long."}, "context_length_exceeded"),
        ({"status_code": 401}, "upstream_failed"),
        *[(error, "upstream_failed") for error in ("x", None, {"code": True}, {"status": 700})],
    ],
)
def test_an_error_in_a_stream_is_that_of_its_status(error: Any, code: str) -> None:
    assert failure_in_stream("box", error, secret="").code == code


def test_a_message_is_shortened_and_holds_no_key() -> None:
    words = "s3cret-key and\nmore " + "x" * 5_000
    body = json.dumps({"error": {"message": words}}).encode()
    failure = failure_of("box", 400, body, retry_after=None, secret="s3cret-key")
    assert "s3cret-key" not in failure.message
    assert len(failure.message) < MAX_MESSAGE_CHARACTERS + 100
    assert "\n" not in failure.message


WORDS = st.sampled_from(["code", "status", "type", "message", "param", "x"])
SCALARS = st.none() | st.integers(0, 999) | st.text(max_size=5)


@given(SCALARS | st.dictionaries(WORDS, SCALARS, max_size=4))
def test_any_error_in_a_stream_is_a_failure(error: Any) -> None:
    assert RequestFailedError(failure_in_stream("box", error, secret="")).status >= 400
