"""Spoilt bodies of batches, lines of their files, and tokenize requests: taken or refused, never
anything else."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from inference.wire.anthropic import batches as anthropic_batches
from inference.wire.common.batch_lines import read_lines
from inference.wire.errors import ApiError
from inference.wire.openai import batches as openai_batches
from inference.wire.vllm import tokenize as vllm_tokenize
from tests.cases import each_case
from tests.inference.wire.golden_cases import GoldenCase, cases_of
from tests.inference.wire.random_bodies import random_bodies

NUM_BODIES = 3000
CHAT = "/v1/chat/completions"
MADE = [
    case.parts["request"]
    for case in cases_of(GoldenCase, ["openai_batches", "anthropic_batches"])
    if case.name == "made"
]
(LINES,) = (
    case.parts["lines"] for case in cases_of(GoldenCase, ["openai_batches"]) if case.name == "lines"
)
LINE = json.loads(LINES[0])
TOKENIZE = {"model": "tiny", "prompt": "Hi", "add_special_tokens": True, "return_token_strs": True}
PARSERS: dict[str, tuple[Callable[[bytes], Any], dict[str, Any]]] = {
    "openai": (openai_batches.parse_batch, MADE[0]),
    "anthropic": (lambda body: list(anthropic_batches.parse(body)), MADE[1]),
    "lines": (
        lambda body: list(read_lines([body, b"\n", json.dumps(LINE).encode()], CHAT)),
        {
            **LINE,
            "custom_id": "another",
        },
    ),
    "tokenize": (vllm_tokenize.parse, TOKENIZE),
}


@each_case("name", PARSERS)
def test_taken_or_refused(name: str) -> None:
    parse, seed = PARSERS[name]
    num_taken = num_refused = 0
    for body in random_bodies([seed], NUM_BODIES, seed=5):
        try:
            parse(body)
            num_taken += 1
        except ApiError as error:
            assert 400 <= error.status < 500 and error.message, body
            num_refused += 1
        except Exception as error:
            raise AssertionError(f"{body[:2000]!r} broke the parser") from error
    assert min(num_taken, num_refused) > NUM_BODIES / 20
