"""Every golden case is complete, and the dialects still produce it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from inference.batches.records import ENDED
from inference.wire.anthropic.batches import FIELDS, REQUEST_FIELDS
from inference.wire.anthropic.messages import FIELDS as MESSAGES_FIELDS
from inference.wire.common.batch_lines import LINE_FIELDS
from inference.wire.common.fields import Field, Support
from inference.wire.ollama.chat import FIELDS as OLLAMA_CHAT_FIELDS
from inference.wire.ollama.chat import GENERATE_FIELDS as OLLAMA_GENERATE_FIELDS
from inference.wire.ollama.chat import NESTED_FIELDS as OLLAMA_NESTED_FIELDS
from inference.wire.ollama.embed import FIELDS as OLLAMA_EMBED_FIELDS
from inference.wire.openai.batches import BATCH_FIELDS
from inference.wire.openai.chat.request import FIELDS as CHAT_FIELDS
from inference.wire.openai.chat.request import NESTED_FIELDS
from inference.wire.openai.completions import FIELDS as COMPLETION_FIELDS
from inference.wire.openai.embeddings import FIELDS as EMBEDDING_FIELDS
from inference.wire.openai.responses.request import FIELDS as RESPONSES_FIELDS
from inference.wire.vllm.rerank import FIELDS as RERANK_FIELDS
from inference.wire.vllm.rerank import SCORE_FIELDS as SCORE_FIELDS
from tests.cases import each_case
from tests.inference.wire.golden import (
    BATCH_DIALECTS,
    DIALECTS,
    GOLDEN_DIR,
    OPTIONAL,
    OUTPUTS,
    BatchCase,
    Case,
    batch_cases,
    cases,
)


@each_case("case", cases(), ids=str)
def test_case(case: Case) -> None:
    case.check()
    assert case.parts.keys() - OPTIONAL in case.complete_sets(), f"{case} has {sorted(case.parts)}"


@each_case("case", batch_cases(), ids=str)
def test_case_of_files_and_batches(case: BatchCase) -> None:
    given = case.parts.keys() - case.check().keys()
    assert given and given <= OUTPUTS.keys(), f"{case} has {sorted(given)}"


def test_every_dialect_has_cases_and_every_file_a_dialect() -> None:
    assert {path.stem for path in GOLDEN_DIR.iterdir()} == {*DIALECTS, *BATCH_DIALECTS}
    assert {case.dialect for case in cases()} == set(DIALECTS)


@each_case(
    ("dialect", "fields"),
    [
        ("anthropic_messages", MESSAGES_FIELDS),
        ("ollama_chat", OLLAMA_CHAT_FIELDS),
        ("ollama_embed", OLLAMA_EMBED_FIELDS),
        ("ollama_generate", OLLAMA_GENERATE_FIELDS),
        ("openai_chat", CHAT_FIELDS),
        ("openai_completions", COMPLETION_FIELDS),
        ("openai_embeddings", EMBEDDING_FIELDS),
        ("openai_responses", RESPONSES_FIELDS),
        ("rerank", RERANK_FIELDS),
        ("vllm_score", SCORE_FIELDS),
    ],
)
def test_every_field_that_is_honoured_is_in_a_case(dialect: str, fields: dict[str, Field]) -> None:
    given: set[str] = set()
    for case in cases(dialect):
        if case.is_answered:
            given |= case.parts["request"].keys()
    taken = {name for name, field in fields.items() if field.support is not Support.REFUSED}
    assert taken <= given, f"no answered case gives {sorted(taken - given)}"


@each_case(
    ("dialect", "nested"), [("openai_chat", NESTED_FIELDS), ("ollama_chat", OLLAMA_NESTED_FIELDS)]
)
def test_every_nested_field_of_a_chat_is_in_a_case(
    dialect: str, nested: dict[str, dict[str, Field]]
) -> None:
    given: set[str] = set()
    for case in cases(dialect):
        if case.is_answered:
            given |= set(_names(case.parts["request"]))
    for what, fields in nested.items():
        taken = {name for name, field in fields.items() if field.support is not Support.REFUSED}
        assert taken <= given, f"no answered case gives {sorted(taken - given)} of {what}"


def _names(value: Any) -> Iterator[str]:
    """Returns the names of the objects in it, at any depth."""
    if isinstance(value, dict):
        yield from value
    for child in value.values() if isinstance(value, dict) else value:
        if isinstance(child, dict | list):
            yield from _names(child)


def test_every_dialect_of_batches_has_each_kind() -> None:
    for dialect in BATCH_DIALECTS:
        of_dialect = [one.parts for one in batch_cases() if one.dialect == dialect]
        names = {name for parts in of_dialect for name in parts}
        assert {"parsed", "object", "result_lines", "error"} <= names, dialect


def test_every_field_and_every_end_of_batches_is_in_a_case() -> None:
    given: set[str] = set()
    statuses: set[str] = set()
    for case in batch_cases():
        parts = case.parts
        if "parsed" in parts:
            asked = parts["request"]
            given |= asked.keys() | {name for one in asked.get("requests", []) for name in one}
        if "lines_read" in parts:
            given |= {name for line in parts["lines"] if line.strip() for name in json.loads(line)}
        if "object" in parts:
            statuses.add(parts["batch"]["status"])
    for fields in (BATCH_FIELDS, FIELDS, REQUEST_FIELDS, LINE_FIELDS):
        assert {one.name for one in fields.values() if one.support is not Support.REFUSED} <= given
    assert set(ENDED) <= statuses
