"""Refusals have the status, type and code of the design's table, and the caller's own fields."""

from __future__ import annotations

import orjson

from inference.protocol.events import Failure, TooLong
from inference.wire.error_envelopes import (
    anthropic_errors,
    error_headers,
    ollama_errors,
    openai_errors,
    openai_responses_errors,
)
from inference.wire.errors import (
    ApiError,
    InvalidRequestError,
    MethodNotAllowedError,
    RequestFailedError,
)
from inference.wire.failures import FAILURES
from tests.cases import each_case


@each_case(
    ("code", "status", "retries", "anthropics"),
    [
        ("context_length_exceeded", 400, False, "invalid_request_error"),
        ("insufficient_quota", 429, False, "rate_limit_error"),
        ("rate_limit_exceeded", 429, True, "rate_limit_error"),
        ("model_not_found", 404, False, "not_found_error"),
        ("template_render_failed", 422, False, "invalid_request_error"),
        ("queue_full", 503, True, "overloaded_error"),
        ("engine_crashed", 503, True, "overloaded_error"),
        ("does_not_fit", 503, True, "overloaded_error"),
        ("engine_error", 500, False, "api_error"),
        ("nobody_declared", 500, False, "api_error"),
    ],
)
def test_failures(code: str, status: int, retries: bool, anthropics: str) -> None:
    error = RequestFailedError(Failure(code=code, message="why", param="p"))
    assert (error.status, error.code) == (status, code)
    assert ("retry-after" in {name.decode() for name, _ in error_headers(error)}) is retries
    fields = {"message": "why", "type": error.type, "param": "p", "code": code}
    assert openai_errors.error_object(error)["error"] == fields
    anthropic = orjson.loads(anthropic_errors.error_body(error, request_id="r"))
    assert (anthropic["type"], anthropic["request_id"]) == ("error", "r")
    assert anthropic["error"]["type"] == anthropics
    assert anthropic["error"]["details"] == {"error_code": code, "param": "p"}


def test_fields_of_the_originals_errors_stand_beside_ours() -> None:
    tokens = TooLong(prompt_tokens=9000, context_tokens=8192)
    long = Failure(code="context_length_exceeded", message="Too long.", too_long=tokens)
    more = {"model_id": "m", "suggestion": "Check it."}
    for failure, status, extras in (
        (long, 400, {"prompt_len": 9000, "max": 8192}),
        (Failure(code="repo_fetch_failed", message="No.", **more), 422, more),
    ):
        error = RequestFailedError(failure)
        assert error.status == status
        for fields in (
            openai_errors.error_object(error)["error"],
            orjson.loads(openai_responses_errors.error_body(error, request_id="r"))["error"],
            openai_responses_errors.error_event(error)[1]["error"],
            anthropic_errors.error_object(error, request_id="r")["error"]["details"],
            orjson.loads(ollama_errors.error_body(error, request_id="r")),
        ):
            assert {name: fields[name] for name in extras} == extras


def test_every_failure_is_an_error_and_busy_servers_and_limits_invite_a_retry() -> None:
    for code, kind in FAILURES.items():
        assert 400 <= kind.status < 600, code
        invites = kind.status == 503 or code == "rate_limit_exceeded"
        assert (kind.retry_after_s is not None) == invites, code
    failure = Failure(code="queue_full", message="full", retry_after_s=7.2)
    assert error_headers(RequestFailedError(failure)) == [(b"retry-after", b"8")]
    assert error_headers(MethodNotAllowedError("GET", "POST")) == [(b"allow", b"POST")]


def _params(error: ApiError) -> tuple[str | None, ...]:
    """OpenAI's, the Responses API's and Anthropic's."""
    responses = orjson.loads(openai_responses_errors.error_body(error, request_id="r"))["error"]
    _, event = openai_responses_errors.error_event(error)
    assert event["param"] == event["error"]["param"] == responses["param"]
    anthropic = anthropic_errors.error_object(error, request_id="r")["error"]["details"]
    return (
        openai_errors.error_object(error)["error"]["param"],
        responses["param"],
        anthropic["param"],
    )


def test_a_neurons_refusal_names_the_clients_fields_and_a_parsers_its_own() -> None:
    for named, expected in (
        ("messages", ("messages", "input", "messages")),
        ("prompt", ("prompt", "input", "messages")),
        ("max_tokens", ("max_tokens", "max_output_tokens", "max_tokens")),
        ("stop", ("stop", "stop", "stop_sequences")),
        ("tools[0].parameters", ("tools[0].parameters",) * 3),
    ):
        failed = RequestFailedError(Failure(code="invalid_value", message="No.", param=named))
        assert _params(failed) == expected
        ollamas = orjson.loads(ollama_errors.error_body(failed, request_id="r"))["param"]
        assert ollamas == {"max_tokens": "options.num_predict", "stop": "options.stop"}.get(
            named, named
        )
        assert _params(InvalidRequestError("No.", param=named)) == (named,) * 3
    assert _params(InvalidRequestError("No.")) == (None,) * 3
    assert _params(RequestFailedError(Failure(code="engine_error", message="No."))) == (None,) * 3
