"""Every parser answers 10^5 spoilt bodies with a request or a refusal, never with anything else:
10^4 where its checks are those of another dialect for the most part.

The seeds are the dialect's own answered golden requests, so a new dialect is in here by its cases.
"""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from inference.gateway.images import without_files
from inference.protocol.generation import Request, Submit, decode_inbox_frame, encode_inbox_frame
from inference.wire.common.parts import ImageRules
from inference.wire.dialect import RequestContext
from inference.wire.errors import ApiError
from tests.inference.wire.golden import DIALECTS, cases, inside
from tests.inference.wire.random_bodies import random_bodies

NUM_BODIES = (10_000, pytest.param(100_000, marks=pytest.mark.slow))


def seeds_of(dialect: str) -> list[dict[str, Any]]:
    return [case.parts["request"] for case in cases(dialect) if case.is_answered]


@pytest.mark.parametrize("num_bodies", NUM_BODIES)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_request_or_a_refusal(dialect: str, num_bodies: int) -> None:
    parse, errors = DIALECTS[dialect]
    context = RequestContext()
    codes: dict[str, int] = {}
    for body in random_bodies(seeds_of(dialect), num_bodies, seed=3):
        try:
            request = parse(body, context)
        except ApiError as error:
            assert 400 <= error.status < 500, body
            assert error.message, body
            errors.error_body(error, request_id="r")
            code = error.code
        except Exception as error:
            raise AssertionError(f"{body[:2000]!r} broke the parser") from error
        else:
            _crosses_to_the_neuron(inside(request))
            code = "accepted"
        codes[code] = codes.get(code, 0) + 1
    assert codes["accepted"] > num_bodies / 20, codes
    assert {"invalid_json", "invalid_type", "unsupported_parameter"} <= codes.keys(), codes


def _crosses_to_the_neuron(request: Request) -> None:
    request, _ = without_files(request, ImageRules())
    submit = Submit(request_id="r", gateway_id="g", model="m", request=request, deadline_unix_s=0.0)
    assert decode_inbox_frame(encode_inbox_frame(submit)) == submit


def test_bodies_are_repeatable_and_various() -> None:
    seeds = [{"model": "m", "n": 1, "list": [{"role": "user", "content": "Hi"}]}]
    bodies = list(random_bodies(seeds, 5000, seed=1))
    assert bodies == list(random_bodies(seeds, 5000, seed=1))
    assert bodies != list(random_bodies(seeds, 5000, seed=2))
    assert len(set(bodies)) > 2000
    assert sum(_is_json(body) for body in bodies) > 2000


def _is_json(body: bytes) -> bool:
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return True
