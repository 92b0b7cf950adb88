"""The OpenAPI document is committed as it is made, and says what the parsers take."""

from __future__ import annotations

from inference.wire.openai import embeddings as openai_embeddings
from inference.wire.openai.chat import request as openai_chat
from inference.wire.openapi import FILE, document, document_bytes, types_of


def test_the_committed_document_is_what_the_parsers_declare() -> None:
    assert FILE.read_bytes() == document_bytes(), "run: python -m inference.wire.openapi"


def test_types_are_those_that_the_checks_take() -> None:
    chat = openai_chat.FIELDS
    assert types_of(chat["stream"]) == ["boolean"]
    assert types_of(chat["n"]) == ["integer"]
    assert types_of(chat["temperature"]) == ["number"]
    assert types_of(chat["messages"]) == ["array"]
    assert types_of(chat["stop"]) == ["string", "array"]
    assert types_of(openai_embeddings.FIELDS["input"]) == ["string", "array"]


def test_every_reference_leads_somewhere() -> None:
    made = document()
    schemas = made["components"]["schemas"]
    for path, operations in made["paths"].items():
        if (post := operations.get("post")) is not None:
            content = post["requestBody"]["content"]["application/json"]
            assert content["schema"]["$ref"].rpartition("/")[2] in schemas, path
    assert "/v2/rerank" in made["paths"] and "/v1/batches" in made["paths"]
