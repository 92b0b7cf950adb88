"""Mutated schemas through the workers' door: each is checked, refused at a place of its own, or
ends its worker; and a checked schema ends no engine.

``HELEXA_FUZZ_SCHEMAS`` raises their number, ``HELEXA_FUZZ_SEED`` chooses others.
"""

from __future__ import annotations

import copy
import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from inference.sandbox.jobs import Built, Refused, WorkerLostError
from inference.sandbox.pool import WorkerPool
from inference.text.schema_check import KNOWN, LIMITS
from tests.inference.sandbox.jobs import BYTES, check
from tests.inference.text.test_schema_check import PERSON

NUM_SCHEMAS = int(os.environ.get("HELEXA_FUZZ_SCHEMAS", "2000"))
SEED = int(os.environ.get("HELEXA_FUZZ_SEED", "1"))
ENGINE_TOKENS = 64
ENGINE_LIMIT_S = 120.0
MAX_LOST_SHARE = 0.05
MAX_PARTS = 300
NODE = {
    "type": "object",
    "properties": {
        "value": {"type": ["number", "string", "boolean"]},
        "price": {"type": "number", "exclusiveMinimum": 0, "multipleOf": 0.01},
        "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
    },
    "required": ["value"],
    "additionalProperties": False,
}
SEEDS: list[Any] = [
    PERSON,
    {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
    {"type": "array", "prefixItems": [{"type": "string"}, {"type": "number"}], "items": False},
    {"oneOf": [{"const": "open"}, {"type": "integer"}], "patternProperties": {"^x-": {}}},
    {"allOf": [{"type": "object", "properties": {"a": {"type": "string"}}}, {"required": ["a"]}]},
]
KEYWORDS = sorted({*KNOWN, "minProperties", "maxProperties", "not", "uniqueItems", "x-guidance"})
SIZES = ["minItems", "maxItems", "minLength", "maxLength", "minimum", "multipleOf"]
NUMBERS: list[Any] = [
    *(0, -0.0, 1, -1, 0.1, 1e-320, 1e300, -1e300, 2**53 + 1, 10**40, 2**63 - 1, 2**64, -(2**63)),
    *(10**9, 100_000, 5000, 4503599627370497.5, 5e-324),
]
TEXTS = [
    *("", "a", "😀" * 50, "ab" + "😀" * 50, "\0", "\ud800", "{" * 200, '"\\', "#", "#/$defs/node"),
    *("#/nothing", "https://a/b", "x" * 5000, "object", "string", "integer", "null", "date-time"),
]
PATTERNS = [
    *("(a{1,1000}){1,1000}", ".*a.{1000}b.{1000}c", "(" * 300, "a{999999999}", r"\p{L}{1,500}"),
    *("(?=a)b", r"(a)\1", "^$", "a|" * 1000, "(a+)+$", "(?i)" + "ß" * 50, r"\uD83D", r"\w{5000}"),
]


def mutated(pick: random.Random) -> Any:
    schema = copy.deepcopy(pick.choice(SEEDS))
    for _ in range(pick.choice([1, 1, 2, 3, 6])):
        parts = list(islice(_inside(schema), MAX_PARTS))
        if len(parts) == MAX_PARTS:  # lists of lists of 2,000 would not end
            break
        places = [one for one in parts if isinstance(one, dict)]
        place, value = pick.choice(places), pick.choice(NUMBERS + TEXTS)
        other = copy.deepcopy(pick.choice([*SEEDS, *places, value, [value] * 3, None, True, {}]))
        place |= pick.choice(
            [
                {pick.choice(KEYWORDS): other},
                {pick.choice(list(place or ["a"])): other},
                {"pattern": pick.choice(PATTERNS), "type": "string"},
                {pick.choice(SIZES): pick.choice(NUMBERS)},
                {pick.choice(["const", "enum"]): pick.choice([other, [other] * 2000])},
                {pick.choice(["anyOf", "allOf", "oneOf"]): [other, {}]},
            ]
        )
        if pick.random() < 0.1:
            for _ in range(pick.choice([3, 99, 130])):
                schema = {"properties": {"a": schema}}
    return schema


def _inside(value: Any) -> Iterator[Any]:
    yield value
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, dict | list):
            yield from _inside(inner)


@pytest.mark.parametrize(
    "num_schemas",
    [
        120,
        pytest.param(NUM_SCHEMAS, marks=[pytest.mark.slow, pytest.mark.limit_s(36_000)]),
    ],
)
def test_any_schema_is_checked_refused_or_ends_its_worker(num_schemas: int) -> None:
    pick, counted, pool = random.Random(SEED), Counter[str](), WorkerPool()
    pool.keep_tokenizer(BYTES)
    # A process that compiles and follows grammars with nothing around it, as engines do.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as engine:
        for index in range(num_schemas):
            schema = mutated(pick)
            job = check(schema, tokenizer=BYTES.digest, is_lenient=index % 3 == 2)
            try:
                result = pool.run(job)
            except (WorkerLostError, RecursionError) as error:
                counted["lost" if isinstance(error, WorkerLostError) else "refused"] += 1
                print(index, error, json.dumps(schema)[:300], flush=True)
                continue
            if isinstance(result, Refused):
                assert str(result.param).startswith("schema")
                assert result.message.startswith(f"{result.param}: ")
                counted["refused"] += 1
            else:
                assert isinstance(result, Built)
                engine.submit(follow, result.grammar.text).result(ENGINE_LIMIT_S)
                counted["checked"] += 1
    pool.close()
    print(dict(counted))
    assert counted["checked"] > num_schemas / 20 and counted["refused"] > num_schemas / 5
    assert counted["lost"] <= 3 + num_schemas * MAX_LOST_SHARE


def follow(grammar: str) -> None:
    """Raises or dies where an engine would."""
    matcher = LLMatcher(LLTokenizer("byte"), grammar, log_level=0, limits=LIMITS)
    choice = random.Random(len(grammar))
    for _ in range(ENGINE_TOKENS):
        if matcher.is_error() or matcher.is_stopped():
            break
        bias = matcher.compute_logit_bias()
        allowed = [token_id for token_id, value in enumerate(bias[:256]) if value]
        if not allowed:
            break
        matcher.consume_token(choice.choice(allowed))
