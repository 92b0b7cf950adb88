"""Every parser answers spoilt bodies with a request or a refusal, never with anything else.

The seeds are the dialect's own answered golden requests, so a new dialect is in here by its cases.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from inference.gateway.images import without_files
from inference.protocol.generation import Request, Submit, decode_inbox_frame, encode_inbox_frame
from inference.wire.anthropic import batches as anthropic_batches
from inference.wire.anthropic import messages as anthropic_messages
from inference.wire.common.batch_lines import read_lines
from inference.wire.common.parts import ImageRules
from inference.wire.dialect import RequestContext
from inference.wire.errors import ApiError
from inference.wire.openai import batches as openai_batches
from inference.wire.openai.responses import request as openai_responses
from inference.wire.vllm import tokenize as vllm_tokenize
from tests.cases import each_case
from tests.inference.wire.golden import DIALECTS, batch_cases, cases, inside
from tests.inference.wire.random_bodies import random_bodies

NUM_BODIES = (2_000, pytest.param(100_000, marks=pytest.mark.slow))


def seeds_of(dialect: str, *only: str) -> list[dict[str, Any]]:
    """The bodies of its answered cases, or these fields of them."""
    bodies = [case.parts["request"] for case in cases(dialect) if case.is_answered]
    return [{name: body[name] for name in body if not only or name in only} for body in bodies]


def outcomes(parse: Any, seeds: list[dict[str, Any]], num_bodies: int) -> Counter[str]:
    """How often each code was answered, or the request was accepted."""
    found: Counter[str] = Counter()
    for body in random_bodies(seeds, num_bodies, seed=3):
        try:
            parse(body)
            found["accepted"] += 1
        except ApiError as error:
            assert 400 <= error.status < 500 and error.message, body
            found[error.code] += 1
        except Exception as error:
            raise AssertionError(f"{body[:2000]!r} broke the parser") from error
    assert min(found["accepted"], found.total() - found["accepted"]) > num_bodies / 20, found
    return found


@pytest.mark.parametrize("num_bodies", NUM_BODIES)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_request_or_a_refusal(dialect: str, num_bodies: int) -> None:
    read, errors = DIALECTS[dialect]

    def parse(body: bytes) -> None:
        try:
            request = read(body, RequestContext())
        except ApiError as error:
            errors.error_body(error, request_id="r")
            raise
        crosses_to_the_neuron(inside(request))

    codes = outcomes(parse, seeds_of(dialect), num_bodies)
    assert {"invalid_json", "invalid_type", "unsupported_parameter"} <= codes.keys(), codes


def crosses_to_the_neuron(request: Request) -> None:
    request, _ = without_files(request, ImageRules())
    submit = Submit(request_id="r", gateway_id="g", model="m", request=request, deadline_unix_s=0.0)
    assert decode_inbox_frame(encode_inbox_frame(submit)) == submit


MADE = {one.dialect: one.parts for one in batch_cases() if one.name == "made"}
(LINES,) = (one.parts["lines"] for one in batch_cases() if one.name == "lines")
LINE = LINES[0].encode()
OTHER_LINE = json.loads(LINE) | {"custom_id": "another"}
TOKENIZE = {"model": "tiny", "prompt": "Hi", "add_special_tokens": True, "return_token_strs": True}


@each_case(
    ("parse", "seeds"),
    [
        (openai_batches.parse_batch, [MADE["openai_batches"]["request"]]),
        (lambda body: [*anthropic_batches.parse(body)], [MADE["anthropic_batches"]["request"]]),
        (
            lambda body: list(read_lines([body, b"\n", LINE], "/v1/chat/completions")),
            [OTHER_LINE],
        ),
        (vllm_tokenize.parse, [TOKENIZE]),
        (
            lambda body: crosses_to_the_neuron(anthropic_messages.parse_count(body)),
            seeds_of("anthropic_messages", *anthropic_messages.COUNT_FIELDS),
        ),
        (
            lambda body: openai_responses.count_of(openai_responses.parse_count(body)),
            seeds_of("openai_responses", *openai_responses.COUNT_FIELDS),
        ),
    ],
    ids=["openai_batch", "anthropic_batch", "lines", "tokenize", "anthropic_count", "openai_count"],
)
def test_bodies_of_other_kinds(parse: Any, seeds: list[dict[str, Any]]) -> None:
    outcomes(parse, seeds, 1_500)
