"""The table of values names every field that the OpenAPI document says is honoured."""

from __future__ import annotations

import json
from typing import Any

import pytest

from helexa_site.config import REPOSITORY_DIR
from tests.strangers.fields.field_values import ELSEWHERE, FIELDS

OPENAPI: dict[str, Any] = json.loads((REPOSITORY_DIR / "docs" / "openapi.json").read_text())


@pytest.mark.parametrize("path", FIELDS)
def test_every_honoured_field_is_tried(path: str) -> None:
    body = OPENAPI["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    schema = OPENAPI["components"]["schemas"][body["$ref"].rpartition("/")[2]]
    honoured = {
        name for name, said in schema["properties"].items() if said.get("x-support") == "honoured"
    }
    assert honoured == FIELDS[path].keys() | ELSEWHERE[path]
