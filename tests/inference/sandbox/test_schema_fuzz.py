"""Mutated schemas through the workers' door: each is checked, refused at a place of its own, or
ends its worker; and a checked schema ends no engine.

``HELEXA_FUZZ_SCHEMAS`` raises their number, ``HELEXA_FUZZ_SEED`` chooses others.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from inference.sandbox.errors import WorkerLostError
from inference.sandbox.jobs import Built, Refused
from inference.sandbox.pool import WorkerPool
from inference.text.grammars.compiling import LIMITS
from tests.inference.sandbox.hostile_schemas import SchemaMutator
from tests.inference.sandbox.jobs import BYTES, check

NUM_SCHEMAS = int(os.environ.get("HELEXA_FUZZ_SCHEMAS", "0"))
SEED = int(os.environ.get("HELEXA_FUZZ_SEED", "1"))
ENGINE_TOKENS = 64
ENGINE_LIMIT_S = 120.0
MAX_LOST_SHARE = 0.05


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    made = WorkerPool()
    made.keep_tokenizer(BYTES)
    yield made
    made.close()


@pytest.fixture(scope="module")
def engine() -> Iterator[ProcessPoolExecutor]:
    """A process that compiles and follows grammars with nothing around it, as engines do."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as made:
        yield made


@pytest.mark.parametrize(
    "num_schemas",
    [
        300,
        pytest.param(NUM_SCHEMAS or 4000, marks=[pytest.mark.slow, pytest.mark.limit_s(36_000)]),
    ],
)
def test_any_schema_is_checked_refused_or_ends_its_worker(
    pool: WorkerPool, engine: ProcessPoolExecutor, num_schemas: int
) -> None:
    mutator, counted = SchemaMutator(SEED), Counter[str]()
    for index in range(num_schemas):
        schema, is_lenient = mutator.make(), index % 3 == 2
        outcome = _outcome(pool, engine, schema, is_lenient=is_lenient)
        counted[outcome] += 1
        if outcome.startswith("lost") or (index + 1) % 1000 == 0:
            print(index, outcome, json.dumps(schema)[:300], dict(counted), flush=True)
    print(dict(counted))
    assert counted["checked"] > num_schemas / 20
    assert counted["refused"] > num_schemas / 5
    num_lost = sum(count for outcome, count in counted.items() if outcome.startswith("lost"))
    assert num_lost <= 3 + num_schemas * MAX_LOST_SHARE


def _outcome(
    pool: WorkerPool, engine: ProcessPoolExecutor, schema: Any, *, is_lenient: bool
) -> str:
    job = check(schema, tokenizer=BYTES.digest, is_lenient=is_lenient)
    try:
        result = pool.run(job)
    except WorkerLostError as lost:
        return f"lost: it {lost.reason}"
    except RecursionError:
        return "refused"
    if isinstance(result, Refused):
        assert str(result.param).startswith("schema")
        assert result.message.startswith(f"{result.param}: ")
        return "refused"
    assert isinstance(result, Built)
    return engine.submit(follow, result.grammar.text).result(ENGINE_LIMIT_S)


@cache
def _bytes_tokenizer() -> LLTokenizer:
    return LLTokenizer("byte")


def follow(grammar: str) -> str:
    """Raises or dies where an engine would."""
    matcher = LLMatcher(_bytes_tokenizer(), grammar, log_level=0, limits=LIMITS)
    choice = random.Random(len(grammar))
    for _ in range(ENGINE_TOKENS):
        if matcher.is_error() or matcher.is_stopped():
            break
        bias = matcher.compute_logit_bias()
        allowed = [token_id for token_id, value in enumerate(bias[:256]) if value]
        if not allowed:
            break
        matcher.consume_token(choice.choice(allowed))
    return "checked"
