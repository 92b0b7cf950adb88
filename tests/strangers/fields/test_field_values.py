"""The table of values names every field that the OpenAPI document lists as honoured."""

from __future__ import annotations

import pytest

from inference.wire.openapi import document
from tests.strangers.fields.field_values import ELSEWHERE, EMBEDDING_FIELDS, FIELDS

OPENAPI = document()


@pytest.mark.parametrize("path", FIELDS)
def test_every_honoured_field_is_tried(path: str) -> None:
    honoured = _honoured(_component_of(path))
    if "options" in honoured:
        honoured |= {f"options.{name}" for name in _honoured("POST_api_chat_options")}
    assert honoured == FIELDS[path].keys() | ELSEWHERE[path]


@pytest.mark.parametrize("path", EMBEDDING_FIELDS)
def test_every_honoured_field_of_embeddings_is_tried(path: str) -> None:
    assert _honoured(_component_of(path)) == EMBEDDING_FIELDS[path].keys() | {"model"}


def _component_of(path: str) -> str:
    body = OPENAPI["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return str(body["$ref"].rpartition("/")[2])


def _honoured(component: str) -> set[str]:
    properties = OPENAPI["components"]["schemas"][component]["properties"]
    return {
        name for name, declared in properties.items() if declared.get("x-support") == "honoured"
    }
