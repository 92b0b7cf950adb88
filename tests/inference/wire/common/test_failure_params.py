"""A neuron's refusal names the field that the caller wrote, whatever the dialect."""

from __future__ import annotations

import json
from collections.abc import Callable

from inference.protocol.events import Failure
from inference.wire.anthropic import errors as anthropic_errors
from inference.wire.errors import ApiError, InvalidRequestError, RequestFailedError
from inference.wire.openai import errors as openai_errors
from inference.wire.openai.responses import errors as openai_responses_errors
from tests.cases import each_case


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
        (_openai, "messages", "messages"),
        (_openai, "prompt", "prompt"),
        (_openai, "stop", "stop"),
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
def test_a_neurons_refusal(
    param_of: Callable[[ApiError], str | None], named: str, expected: str
) -> None:
    error = RequestFailedError(Failure(code="invalid_value", message="No.", param=named))
    assert param_of(error) == expected


@each_case("param_of", [_openai, _responses, _anthropic])
def test_a_parsers_refusal_names_its_own_fields(
    param_of: Callable[[ApiError], str | None],
) -> None:
    assert param_of(InvalidRequestError("No.", param="stop")) == "stop"
    assert param_of(InvalidRequestError("No.")) is None
    assert param_of(RequestFailedError(Failure(code="engine_error", message="No."))) is None
