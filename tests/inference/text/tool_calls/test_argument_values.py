"""Text to the value that a schema asks for."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from inference.text.tool_calls.argument_values import as_json, is_text
from tests.cases import each_case

INTEGER = {"type": "integer"}
ROOT = {
    "$defs": {"Count": INTEGER, "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, INTEGER]}},
    "properties": {"a/b": {"type": "boolean"}},
}

CASES: list[tuple[Any, str, Any]] = [
    (INTEGER, "3", 3),
    (INTEGER, " -3\n", -3),
    (INTEGER, "3.0", 3),
    (INTEGER, "3.5", "3.5"),
    (INTEGER, "007", "007"),
    (INTEGER, "9" * 500, "9" * 500),
    ({"type": "number"}, "2.50", 2.5),
    ({"type": "number"}, "1e3", 1000.0),
    ({"type": "number"}, "NaN", "NaN"),
    ({"type": "boolean"}, "True", True),
    ({"type": "boolean"}, "yes", "yes"),
    ({"type": "null"}, "None", None),
    ({"type": "string"}, "3", "3"),
    ({"type": "string"}, " null ", " null "),
    ({"type": ["string", "null"]}, "null", None),
    ({"type": ["string", "integer"]}, "3", 3),
    ({"type": ["integer", "null"]}, "x", "x"),
    ({"type": "string", "nullable": True}, "null", None),
    ({"anyOf": [INTEGER, {"type": "null"}]}, "null", None),
    ({"oneOf": [{"type": "boolean"}, {"type": "string"}]}, "false", False),
    ({"allOf": [{"$ref": "#/$defs/Count"}], "description": "how many"}, "3", 3),
    ({"type": "array", "items": INTEGER}, "[1, 2]", [1, 2]),
    ({"items": INTEGER}, "[1, 2]", [1, 2]),
    ({"type": "array"}, "('a', None)", "('a', None)"),
    ({"type": "array"}, "1, 2", "1, 2"),
    ({"type": "object"}, '{"a": 1}', {"a": 1}),
    ({"properties": {}}, "{'a': None}", {"a": None}),
    ({"type": "object"}, "[1]", "[1]"),
    ({"type": "object"}, "[" * 100_000, "[" * 100_000),
    ({"type": "object"}, '{"a": NaN}', '{"a": NaN}'),
    ({"enum": ["1", 2, None]}, "1", "1"),
    ({"enum": ["1", 2, None]}, "2", 2),
    ({"enum": ["1", 2, None]}, "null", None),
    ({"type": "string", "enum": ["a", "b"]}, "c", "c"),
    ({"const": True}, "true", True),
    ({"$ref": "#/$defs/Count"}, "3", 3),
    ({"$ref": "#/properties/a~1b"}, "true", True),
    ({"$ref": "#/nowhere"}, "3", "3"),
    ({"$ref": "https://example.org/schema"}, "3", "3"),
    ({"$ref": "#/$defs/Loop"}, "3", 3),
    ({}, "3", 3),
    (True, "text", "text"),
    (None, "3", "3"),
    ({"type": 7}, "x", "x"),
    ({"enum": 7, "anyOf": 7}, "[1]", [1]),
]


@each_case(("schema", "text", "value"), CASES)
def test_a_value_follows_its_schema(schema: Any, text: str, value: Any) -> None:
    found = json.loads(as_json(text, schema, ROOT))
    assert found == value
    assert type(found) is type(value)


@each_case(
    ("schema", "expected"),
    [
        ({"type": "string"}, True),
        ({"enum": ["a"]}, True),
        ({"anyOf": [{"type": "string"}, {"const": "x"}]}, True),
        (None, True),
        ({"type": ["string", "null"]}, False),
        ({"type": "string", "nullable": True}, False),
        (INTEGER, False),
        ({}, False),
    ],
)
def test_what_stays_text_whatever_it_holds(schema: Any, expected: bool) -> None:
    assert is_text(schema, ROOT) is expected


TYPES = ["null", "integer", "number", "boolean", "object", "array", "string"]


@given(text=st.text() | st.text("[]{}'\"0123.e-nul:, "), types=st.lists(st.sampled_from(TYPES)))
def test_every_text_becomes_some_value(text: str, types: list[str]) -> None:
    value = json.loads(as_json(text, {"type": types}, {}))
    if types == ["string"]:
        assert value == text
