"""Counting a response's prompt: the count is that of the rendered prompt."""

from __future__ import annotations

import json
from typing import Any, get_type_hints

import orjson
import pytest
from openai.types.responses.input_token_count_params import InputTokenCountParams

from inference.wire.errors import ApiError
from inference.wire.openai.responses import request as openai_responses
from inference.wire.openai.responses.request import ResponsesRequest
from tests.cases import each_case
from tests.inference.wire.golden import cases
from tests.inference.wire.random_bodies import random_bodies

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}


def parse(**fields: Any) -> ResponsesRequest:
    return openai_responses.parse_count(orjson.dumps({"model": "m", "input": "Hi", **fields}))


def test_every_field_of_the_sdk_is_declared() -> None:
    assert set(get_type_hints(InputTokenCountParams)) == set(openai_responses.COUNT_FIELDS)


def test_a_count_renders_what_the_response_would() -> None:
    body = {
        "model": "m",
        "input": [{"role": "user", "content": "Hi"}],
        "instructions": "Be brief.",
        "tools": [TOOL],
        "tool_choice": "required",
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "json_object"}},
    }
    counted = openai_responses.count_of(parse(**body))
    assert counted.model == "m"
    assert counted.input == openai_responses.parse(orjson.dumps(body)).generation.input


@each_case("name", ["stream", "store", "temperature", "max_output_tokens"])
def test_a_count_has_nothing_to_generate(name: str) -> None:
    with pytest.raises(ApiError, match=name):
        parse(**{name: 1})


def test_spoilt_counts_are_counted_or_refused() -> None:
    read = [case.parts["request"] for case in cases("openai_responses")]
    fields = openai_responses.COUNT_FIELDS
    seeds = [{name: body[name] for name in body if name in fields} for body in read]
    num_accepted = 0
    for body in random_bodies(seeds, 10_000, seed=7):
        try:
            request = openai_responses.parse_count(body)
        except ApiError as error:
            assert error.status == 400
        else:
            openai_responses.count_of(request)
            num_accepted += 1
    assert num_accepted > 1000


def test_the_body_is_the_sdk_s() -> None:
    assert json.loads(openai_responses.count_body(7)) == {
        "object": "response.input_tokens",
        "input_tokens": 7,
    }
