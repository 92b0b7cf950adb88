"""Refusals have the status, type and code of the design's table, and the caller's own fields."""

from __future__ import annotations

import json
from collections.abc import Callable

import orjson

from inference.protocol.events import Failure, TooLong
from inference.wire.anthropic import errors as anthropic_errors
from inference.wire.common.failures import FAILURES
from inference.wire.dialect import error_headers
from inference.wire.errors import (
    ApiError,
    InvalidRequestError,
    MethodNotAllowedError,
    RequestFailedError,
)
from inference.wire.ollama import errors as ollama_errors
from inference.wire.openai import errors as openai_errors
from inference.wire.openai.errors import error_object
from inference.wire.openai.responses import errors as openai_responses_errors
from tests.cases import each_case

BUSY = ("queue_full", "queue_timeout", "neuron_lost", "does_not_fit", "out_of_memory")
BROKEN = ("engine_crashed", "engine_hung", "device_fault")


@each_case(
    ("code", "status", "retries"),
    [
        ("context_length_exceeded", 400, False),
        ("bad_token_id", 400, False),
        ("insufficient_quota", 429, False),
        ("rate_limit_exceeded", 429, True),
        ("template_render_failed", 422, False),
        *[(code, 503, True) for code in (*BUSY, *BROKEN)],
        *[(code, 500, False) for code in ("engine_error", "numerical_error", "nobody_declared")],
    ],
)
def test_failures(code: str, status: int, retries: bool) -> None:
    error = RequestFailedError(Failure(code=code, message="why", param="p"))
    assert (error.status, error.code) == (status, code)
    assert ("retry-after" in {name.decode() for name, _ in error_headers(error)}) is retries
    assert error_object(error)["error"] == {
        "message": "why",
        "type": error.type,
        "param": "p",
        "code": code,
    }


LONG = Failure(
    code="context_length_exceeded",
    message="Too long.",
    too_long=TooLong(prompt_tokens=9000, context_tokens=8192),
)
UNLOADABLE = Failure(
    code="repo_fetch_failed",
    message="No such repository.",
    model_id="huggingface:org/none",
    suggestion="Check its name.",
)


@each_case(
    ("failure", "status", "extras"),
    [
        (LONG, 400, {"prompt_len": 9000, "max": 8192}),
        (UNLOADABLE, 422, {"model_id": "huggingface:org/none", "suggestion": "Check its name."}),
    ],
)
def test_fields_of_the_originals_errors_stand_beside_ours(
    failure: Failure, status: int, extras: dict[str, object]
) -> None:
    error = RequestFailedError(failure)
    assert error.status == status
    bodies = [
        error_object(error)["error"],
        orjson.loads(openai_responses_errors.error_body(error, request_id="r"))["error"],
        openai_responses_errors.error_event(error)[1]["error"],
        anthropic_errors.error_object(error, request_id="r")["error"]["details"],
        orjson.loads(ollama_errors.error_body(error, request_id="r")),
    ]
    for one in bodies:
        assert {name: one[name] for name in extras} == extras


def test_every_failure_is_an_error_and_busy_servers_and_limits_invite_a_retry() -> None:
    for code, kind in FAILURES.items():
        assert 400 <= kind.status < 600, code
        invites = kind.status == 503 or code == "rate_limit_exceeded"
        assert (kind.retry_after_s is not None) == invites, code


def test_headers_name_the_failures_own_retry_and_what_is_allowed() -> None:
    failure = Failure(code="queue_full", message="full", retry_after_s=7.2)
    assert error_headers(RequestFailedError(failure)) == [(b"retry-after", b"8")]
    assert error_headers(MethodNotAllowedError("GET", "POST")) == [(b"allow", b"POST")]


def _openai(error: ApiError) -> str | None:
    body = json.loads(openai_errors.error_body(error, request_id="r"))
    return body["error"]["param"]


def _responses(error: ApiError) -> str | None:
    body = json.loads(openai_responses_errors.error_body(error, request_id="r"))
    _, event = openai_responses_errors.error_event(error)
    assert event["param"] == event["error"]["param"] == body["error"]["param"]
    return body["error"]["param"]


def _anthropic(error: ApiError) -> str | None:
    body = json.loads(anthropic_errors.error_body(error, request_id="r"))
    return body["error"]["details"]["param"]


@each_case(
    ("param_of", "named", "expected"),
    [
        *[(_openai, named, named) for named in ("messages", "prompt", "stop")],
        (_responses, "messages", "input"),
        (_responses, "prompt", "input"),
        (_responses, "max_tokens", "max_output_tokens"),
        (_responses, "tools[0].parameters", "tools[0].parameters"),
        (_anthropic, "messages", "messages"),
        (_anthropic, "prompt", "messages"),
        (_anthropic, "max_tokens", "max_tokens"),
        (_anthropic, "stop", "stop_sequences"),
    ],
)
def test_a_neurons_refusal_names_the_clients_fields_and_a_parsers_its_own(
    param_of: Callable[[ApiError], str | None], named: str, expected: str
) -> None:
    error = RequestFailedError(Failure(code="invalid_value", message="No.", param=named))
    assert param_of(error) == expected
    assert param_of(InvalidRequestError("No.", param=named)) == named
    assert param_of(InvalidRequestError("No.")) is None
    assert param_of(RequestFailedError(Failure(code="engine_error", message="No."))) is None
