"""The OpenAPI document matches the parsers."""

from __future__ import annotations

from inference.wire.openai import embeddings as openai_embeddings
from inference.wire.openai.chat import request as openai_chat
from inference.wire.openai.passed.request import ENDPOINTS
from inference.wire.openapi import document, types_of

PASSED = {endpoint.path for endpoint in ENDPOINTS}


def test_types_are_those_that_the_checks_take() -> None:
    chat = openai_chat.FIELDS
    assert types_of(chat["stream"]) == ["boolean"]
    assert types_of(chat["n"]) == ["integer"]
    assert types_of(chat["temperature"]) == ["number"]
    assert types_of(chat["messages"]) == ["array"]
    assert types_of(chat["stop"]) == ["string", "array"]
    assert types_of(openai_embeddings.FIELDS["input"]) == ["string", "array"]


def test_passed_requests_are_listed_with_what_is_read_of_them() -> None:
    made = document()["paths"]
    for endpoint in ENDPOINTS:
        content = made[endpoint.path]["post"]["requestBody"]["content"]
        kind = "multipart/form-data" if endpoint.is_form else "application/json"
        assert content[kind]["schema"]["properties"].keys() >= {"model"}


def test_every_reference_leads_somewhere() -> None:
    made = document()
    for path, operations in made["paths"].items():
        if "post" in operations and path not in PASSED:
            schema = operations["post"]["requestBody"]["content"]["application/json"]["schema"]
            assert schema["$ref"].rpartition("/")[2] in made["components"]["schemas"], path
    assert "/v2/rerank" in made["paths"] and "/v1/batches" in made["paths"]
