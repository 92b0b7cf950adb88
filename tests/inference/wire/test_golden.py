"""Every golden case is complete, and the dialects still produce it; the OpenAPI document matches
the parsers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from inference.batches.records import ENDED
from inference.wire import embeddings, vllm
from inference.wire.anthropic import batches as anthropic_batches
from inference.wire.anthropic import messages as anthropic_messages
from inference.wire.fields import Field, Support
from inference.wire.ollama import chat as ollama_chat
from inference.wire.openai import batches as openai_batches
from inference.wire.openai import chat as openai_chat
from inference.wire.openai import completions as openai_completions
from inference.wire.openai.batches import LINE_FIELDS
from inference.wire.openai.passed import ENDPOINTS
from inference.wire.openapi import document, types_of
from inference.wire.responses import request as openai_responses
from tests.cases import each_case
from tests.inference.wire import golden


@each_case("case", [*golden.cases(), *golden.batch_cases()], ids=str)
def test_case(case: golden.Case | golden.BatchCase) -> None:
    given = case.parts.keys() - case.check().keys() - {"headers"}
    if isinstance(case, golden.BatchCase):
        assert given and given <= golden.OUTPUTS.keys(), f"{case} has {sorted(given)}"
    else:
        assert given == ({"request", "events"} if case.is_answered else {"request"}), sorted(given)


def test_every_dialect_has_cases_and_every_file_a_dialect() -> None:
    assert {path.stem for path in golden.GOLDEN_DIR.iterdir()} == {
        *golden.DIALECTS,
        *golden.BATCH_DIALECTS,
    }
    assert {case.dialect for case in golden.cases()} == set(golden.DIALECTS)


FIELDS: dict[str, Mapping[str, Field]] = {
    "anthropic_messages": anthropic_messages.FIELDS,
    "ollama_chat": ollama_chat.FIELDS,
    "ollama_embed": embeddings.OLLAMA_FIELDS,
    "ollama_generate": ollama_chat.GENERATE_FIELDS,
    "openai_chat": openai_chat.FIELDS,
    "openai_completions": openai_completions.FIELDS,
    "openai_embeddings": embeddings.OPENAI_FIELDS,
    "openai_responses": openai_responses.FIELDS,
    "rerank": vllm.RERANK_FIELDS,
    "vllm_score": vllm.SCORE_FIELDS,
}
NESTED = {"openai_chat": openai_chat.NESTED_FIELDS, "ollama_chat": ollama_chat.NESTED_FIELDS}


def taken(fields: Mapping[str, Field]) -> set[str]:
    return {name for name, field in fields.items() if field.support is not Support.REFUSED}


@each_case("dialect", golden.DIALECTS)
def test_every_field_that_is_honoured_is_in_a_case(dialect: str) -> None:
    asked = [case.parts["request"] for case in golden.cases(dialect) if case.is_answered]
    given = {name for body in asked for name in body}
    assert taken(FIELDS[dialect]) <= given, sorted(taken(FIELDS[dialect]) - given)
    nested = {name for body in asked for name in _names(body)}
    for what, fields in NESTED.get(dialect, {}).items():
        assert taken(fields) <= nested, (what, sorted(taken(fields) - nested))


def _names(value: Any) -> Iterator[str]:
    """Returns the names of the objects in it, at any depth."""
    if isinstance(value, dict):
        yield from value
    for child in value.values() if isinstance(value, dict) else value:
        if isinstance(child, dict | list):
            yield from _names(child)


def test_every_field_and_every_end_of_batches_is_in_a_case() -> None:
    given: set[str] = set()
    statuses: set[str] = set()
    for case in golden.batch_cases():
        parts = case.parts
        if "parsed" in parts:
            asked = parts["request"]
            given |= asked.keys() | {name for one in asked.get("requests", []) for name in one}
        if "lines_read" in parts:
            given |= {name for line in parts["lines"] if line.strip() for name in json.loads(line)}
        if "object" in parts:
            statuses.add(parts["batch"]["status"])
    for fields in (openai_batches.BATCH_FIELDS, LINE_FIELDS):
        assert taken(fields) <= given
    assert taken(anthropic_batches.FIELDS) | taken(anthropic_batches.REQUEST_FIELDS) <= given
    assert set(ENDED) <= statuses


def test_the_document_has_the_types_that_the_checks_take() -> None:
    """And what is read of requests that are passed on; its references lead somewhere."""
    chat = openai_chat.FIELDS
    for field, types in (
        *((chat["stream"], ["boolean"]), (chat["n"], ["integer"]), (chat["messages"], ["array"])),
        *((chat["temperature"], ["number"]), (chat["stop"], ["string", "array"])),
        (embeddings.OPENAI_FIELDS["input"], ["string", "array"]),
    ):
        assert types_of(field) == types
    made, passed = document(), {endpoint.path: endpoint for endpoint in ENDPOINTS}
    for path, operations in made["paths"].items():
        if "post" not in operations:
            continue
        content = operations["post"]["requestBody"]["content"]
        if path in passed:
            kind = "multipart/form-data" if passed[path].is_form else "application/json"
            assert content[kind]["schema"]["properties"].keys() >= {"model"}
        else:
            reference = content["application/json"]["schema"]["$ref"].rpartition("/")[2]
            assert reference in made["components"]["schemas"], path
    assert {"/v2/rerank", "/v1/batches", *passed} <= made["paths"].keys()
