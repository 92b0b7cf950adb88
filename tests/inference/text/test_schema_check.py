"""Schemas that can be enforced pass; of every other one, the keyword is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.text import schema_check
from inference.text.errors import SchemaError
from inference.text.grammars import grammar_text, json_part
from inference.text.schema_check import (
    KNOWN,
    checked_schema,
    find_problem,
    leniently_checked,
)
from tests.cases import each_case

ROOT = {"$ref": "#"}
BAD_TEXT = {"type": "string", "pattern": "("}
HUNDREDS = {f"p{index}": {"type": "string"} for index in range(300)}
PERSON = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "person",
    "title": "Person",
    "description": "Somebody.",
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "examples": ["Ann"], "x-order": 1},
        "age": {"type": ["integer", "null"], "minimum": 0, "default": None},
        "born": {"type": "string", "format": "date", "deprecated": True},
        "tags": {"type": "array", "items": {"enum": ["a", 1, None]}, "maxItems": 3},
        "code": {"type": "string", "pattern": "^[A-Z]{2}$"},
        "friend": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        "pet": {"$ref": "#/$defs/pet"},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
    "$defs": {"pet": {"type": "object", "properties": {"kind": {"const": "cat"}}}},
}


@each_case(
    "schema",
    [
        PERSON,
        True,
        {},
        {"type": "object", "patternProperties": {"^x": {"type": "integer"}}},
        {"definitions": {"a": {"type": "string"}}, "$ref": "#/definitions/a"},
        {"oneOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": "array", "prefixItems": [{"type": "string"}], "items": False},
        {"type": "number", "exclusiveMinimum": 0, "multipleOf": 0.5},
        {"type": "object", "properties": {"a": ROOT}},
        {"type": "array", "items": ROOT},
        {"anyOf": [ROOT, {"type": "null"}]},
        {"type": ["object", "null"], "properties": {"a": ROOT}, "required": ["a"]},
    ],
)
def test_what_can_be_enforced_passes(schema: dict[str, Any] | bool) -> None:
    assert checked_schema(schema) == schema


@each_case(
    ("schema", "path"),
    [
        ({"properties": {"x": {"not": {}}}}, "S.properties.x.not"),
        ({"anyOf": [{"type": "null"}, {"if": {}}]}, "S.anyOf[1].if"),
        ({"items": {"uniqueItems": True}}, "S.items.uniqueItems"),
        ({"$defs": {"a": {"nullable": "yes"}}}, "S.$defs.a.nullable"),
        ({"nullable": True, "$ref": "#/$defs/a"}, "S.$ref"),
        ({"anyOf": [{"type": "null"}, {"pattern": "a(?=b)"}]}, "S.anyOf[1].pattern"),
        ({"oneOf": [{"anyOf": [BAD_TEXT]}, {"type": "null"}]}, "S.oneOf[0].anyOf[0].pattern"),
        ({"propertyNames": {"pattern": "^a"}}, "S.propertyNames"),
        ({"dependentRequired": {"a": ["b"]}}, "S.dependentRequired"),
        ({"contentEncoding": "base64"}, "S.contentEncoding"),
        ({"x-guidance": {"lenient": True}}, "S.x-guidance"),
        ({"properties": {"x": {"minimun": 3}}}, "S.properties.x.minimun"),
        ({"properties": {"x": {"$ref": "https://a/b"}}}, "S.properties.x.$ref"),
        ({"properties": {"x": {"$ref": "#/$defs/a"}}}, "S.properties.x.$ref"),
        ({"properties": {"x": {"type": "string", "format": "odd"}}}, "S.properties.x.format"),
        ({"type": "integer", "format": "int32"}, "S.format"),
        ({"items": {"type": "string", "pattern": "a(?=b)"}}, "S.items.pattern"),
        ({"anyOf": [{"type": "strin"}, {"type": "null"}]}, "S.anyOf[0].type"),
        ({"type": "integer", "minimum": 5, "maximum": 2}, "S.minimum"),
        ({"properties": {"x": {"minLength": -1}}}, "S.properties.x.minLength"),
        ({"oneOf": [{"type": "string"}, {"minLength": 3}]}, "S.oneOf"),
        ({"type": "object", "properties": {"a": {}}, "minProperties": 1}, "S.minProperties"),
        ({"required": "a"}, "S.required"),
        ({"required": ["a", 5]}, "S.required"),
        ({"pattern": ["😀" * 50]}, "S.pattern"),
        ({"properties": {"x": {"nullable": True, "pattern": "("}}}, "S.properties.x.pattern"),
        ({"enum": [1, 2**63 - 1]}, "S.enum[1]"),
        ({"items": {"minimum": "😀" * 50}}, "S.items.minimum"),
        ({"type": "string", "exclusiveMaximum": {"a": 1}, "pattern": "^$"}, "S.exclusiveMaximum"),
        ({"maximum": True}, "S.maximum"),
        ({"anyOf": [{"minLength": 1.5}]}, "S.anyOf[0].minLength"),
        ({"maxItems": "ab" + "😀" * 50}, "S.maxItems"),
        ({"$ref": ["😀" * 50]}, "S.$ref"),
        ({"enum": "😀" * 50}, "S.enum"),
        ({"properties": {"x": 5}}, "S.properties.x"),
        ({"properties": []}, "S.properties"),
        ({"anyOf": []}, "S.anyOf"),
        ({"type": 5, "format": "date"}, "S.type"),
        (
            {"properties": HUNDREDS | {"p170": BAD_TEXT, "p290": BAD_TEXT}},
            "S.properties.p170.pattern",
        ),
        (False, "S"),
        # Numbers that no grammar compares exactly.
        ({"type": "integer", "minimum": 1e20, "maximum": 1e21}, "S.minimum"),
        ({"type": "number", "minimum": 10**20}, "S.minimum"),
        ({"type": "integer", "maximum": 1e20}, "S.maximum"),
        ({"type": "integer", "minimum": -(2**63)}, "S.minimum"),
        ({"type": "number", "maximum": 2**63 - 1}, "S.maximum"),
        ({"properties": {"x": {"type": "integer", "const": 1e20}}}, "S.properties.x.const"),
        ({"const": -(2**63)}, "S.const"),
        ({"const": {"a": [-(2**63) + 1]}}, "S.const.a[0]"),
        ({"enum": [1, 100000000000000001]}, "S.enum[1]"),
        ({"enum": [13.644796474277825]}, "S.enum[0]"),
        ({"minimum": float("inf")}, "S.minimum"),
        ({"multipleOf": 1000003}, "S.multipleOf"),
        ({"multipleOf": 9990, "minimum": 1}, "S.multipleOf"),
        ({"type": "number", "multipleOf": 1.2e-8}, "S.multipleOf"),
        ({"items": {"allOf": [{"multipleOf": 101}, {"multipleOf": 97}]}}, "S.items"),
        ({"multipleOf": 7, "enum": [3, 14]}, "S"),
        ({"nullable": True, "allOf": [{"minimum": 1e30}]}, "S.allOf[0].minimum"),
        (
            {"items": {"nullable": True, "allOf": [{"minimum": 1e30}]}},
            "S.items.allOf[0].minimum",
        ),
    ],
)
def test_what_cannot_names_the_keyword(schema: dict[str, Any] | bool, path: str) -> None:
    with pytest.raises(SchemaError) as refused:
        checked_schema(schema)
    assert refused.value.path("S") == path
    assert str(refused.value)


def test_what_forbids_nothing_is_left_out() -> None:
    numbers = {"type": "array", "items": {"type": "integer"}}
    names = {"uniqueItems": {**numbers, "uniqueItems": False}, "x": {"nullable": False}}
    schema = {"properties": names, "propertyNames": {"type": "string"}}
    assert checked_schema(schema) == {"properties": {"uniqueItems": numbers, "x": {}}}


def test_nullable_is_the_type_or_null() -> None:
    is_nullable, null, all_of = (
        {"nullable": True},
        {"type": "null"},
        {"allOf": [{"$ref": "#/$defs/a"}]},
    )
    defs, one = {"$defs": {"a": {"const": 1}}}, {"const": 1}
    for schema, read in (
        ({"type": "string"}, {"type": ["string", "null"]}),
        ({"type": ["null", "string"]}, {"type": ["null", "string"]}),
        ({"type": "string", "minLength": 2}, {"type": ["string", "null"], "minLength": 2}),
        (all_of | defs, defs | {"anyOf": [all_of, null]}),
    ):
        assert checked_schema(schema | is_nullable) == read
    named = {"properties": {"nullable": one | is_nullable}}
    assert checked_schema(named) == {"properties": {"nullable": {"anyOf": [one, null]}}}


NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}, "required": ["next"]}


@each_case(
    ("schema", "path"),
    [
        (ROOT, "S.$ref"),
        (
            {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/$defs/n"}},
                "$defs": {"n": NODE},
            },
            "S.$defs.n.properties.next.$ref",
        ),
        ({"type": "object", "properties": {"a": ROOT}, "required": ["a"]}, "S.properties.a.$ref"),
        ({"type": "array", "items": ROOT, "minItems": 1}, "S.items.$ref"),
        ({"type": "array", "prefixItems": [ROOT], "minItems": 1}, "S.prefixItems[0].$ref"),
        ({"anyOf": [ROOT, ROOT]}, "S.anyOf[0].$ref"),
        ({"$defs": {"n": NODE}, "$ref": "#/$defs/n"}, "S.$defs.n.properties.next.$ref"),
        (
            {"type": "object", "required": ["x"], "additionalProperties": ROOT},
            "S.additionalProperties.$ref",
        ),
        (
            {"$ref": "#/$defs/n/properties/next", "$defs": {"n": NODE}},
            "S.$defs.n.properties.next.$ref",
        ),
    ],
)
def test_a_schema_without_an_end_is_refused(schema: dict[str, Any], path: str) -> None:
    with pytest.raises(SchemaError, match="without an end") as refused:
        checked_schema(schema)
    assert refused.value.path("S") == path
    assert leniently_checked(schema)[1] == [refused.value.steps]


def test_a_form_of_many_such_fields_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_check, "MAX_COMPILED_CHARS", 0)
    mail = {"type": "string", "format": "email", "pattern": r"^(?!\.)[a-z.]+@[a-z.]+$"}
    fields = {f"m{index}": mail for index in range(60)}
    read, places = leniently_checked({"type": "object", "properties": fields})
    assert places == [("properties", name, "pattern") for name in fields]
    assert read == {
        "type": "object",
        "properties": {name: {"type": "string", "format": "email"} for name in fields},
    }


def _nested(depth: int, wrap: Callable[[Any], Any], innermost: Any) -> Any:
    for _ in range(depth):
        innermost = wrap(innermost)
    return innermost


def test_messages_are_ours_however_deep_a_schema_is() -> None:
    for schema, message in (
        ({"pattern": "a(?=b)"}, "look-around"),
        ({"oneOf": [{"type": "string"}, {"minLength": 3}]}, "use anyOf"),
        (_nested(400, lambda inner: {"items": inner}, {}), "nested too deeply"),
        (_nested(400, lambda inner: {"anyOf": [inner]}, {}), "nested too deeply"),
        ({"const": _nested(20_000, lambda inner: [inner], [])}, "."),
    ):
        with pytest.raises(SchemaError, match=message):
            checked_schema(schema)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab#/$(", max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(sorted(KNOWN)) | st.text("ab", max_size=2), inner)
    ),
    max_leaves=8,
)


@given(schema=st.dictionaries(st.sampled_from(sorted(KNOWN)), JSON, max_size=5))
def test_any_object_passes_or_is_refused_by_name(schema: dict[str, Any]) -> None:
    try:
        checked_schema(schema)
    except SchemaError as error:
        assert error.path("S").startswith("S")
    else:
        assert find_problem(grammar_text([json_part(schema)])) is None


def test_a_large_schema_is_not_searched_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_chars = 0

    def counted(grammar: str) -> str | None:
        nonlocal compiled_chars
        compiled_chars += len(grammar)
        return find_problem(grammar)

    monkeypatch.setattr(schema_check, "find_problem", counted)
    many = {f"p{i}": {"type": "string", "maxLength": i} for i in range(2000)}
    broken = {"properties": {"x": {"oneOf": [{"type": "string"}, {"minLength": 3}]}}}
    schema = {"properties": {"here": {**broken}, "many": {"properties": many}}}
    with pytest.raises(SchemaError) as refused:
        checked_schema(schema)
    assert refused.value.path("S") == "S.properties.here.properties.x.oneOf"
    with pytest.raises(SchemaError, match="oneOf") as refused:
        checked_schema({"properties": {**many, **broken["properties"]}, "required": ["x"] * 9000})
    assert refused.value.path("S") == "S"
    assert 0 < compiled_chars <= 3 * schema_check.MAX_COMPILED_CHARS
