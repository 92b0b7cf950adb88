"""Schemas that can be enforced pass; of every other one, the keyword is named. Numbers that a
grammar allows are those that its schema allows, compared as decimals."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from decimal import Context, Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from inference.text import schema_check
from inference.text.errors import SchemaError
from inference.text.grammars import grammar_text, json_part
from inference.text.schema_check import (
    checked_schema,
    find_problem,
    leniently_checked,
)
from tests.cases import each_case

ROOT = {"$ref": "#"}
BAD_TEXT = {"type": "string", "pattern": "("}
BAD_TEXTS = {"p170": BAD_TEXT, "p290": BAD_TEXT}
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
        ({"properties": HUNDREDS | BAD_TEXTS}, "S.properties.p170.pattern"),
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
        ({"items": {"nullable": True, "allOf": [{"minimum": 9e30}]}}, "S.items.allOf[0].minimum"),
    ],
)
def test_what_cannot_names_the_keyword(schema: dict[str, Any] | bool, path: str) -> None:
    with pytest.raises(SchemaError) as refused:
        checked_schema(schema)
    assert refused.value.path("S") == path
    assert str(refused.value)


def test_nullable_is_the_type_or_null_and_what_forbids_nothing_is_left_out() -> None:
    numbers = {"type": "array", "items": {"type": "integer"}}
    names = {"uniqueItems": {**numbers, "uniqueItems": False}, "x": {"nullable": False}}
    schema = {"properties": names, "propertyNames": {"type": "string"}}
    assert checked_schema(schema) == {"properties": {"uniqueItems": numbers, "x": {}}}
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


IN_NODE = {"$ref": "#/$defs/n"}
NODE = {"type": "object", "properties": {"next": IN_NODE}, "required": ["next"]}
OF_NODE: dict[str, Any] = {"type": "object", "$defs": {"n": NODE}}
OTHERS = {"type": "object", "additionalProperties": ROOT}


@each_case(
    ("schema", "path"),
    [
        (ROOT, "S.$ref"),
        ({"properties": {"a": {}, "b": IN_NODE}, **OF_NODE}, "S.$defs.n.properties.next.$ref"),
        ({"type": "object", "properties": {"a": ROOT}, "required": ["a"]}, "S.properties.a.$ref"),
        ({"type": "array", "items": ROOT, "minItems": 1}, "S.items.$ref"),
        ({"type": "array", "prefixItems": [ROOT], "minItems": 1}, "S.prefixItems[0].$ref"),
        ({"anyOf": [ROOT, ROOT]}, "S.anyOf[0].$ref"),
        (OF_NODE | IN_NODE, "S.$defs.n.properties.next.$ref"),
        (OTHERS | {"required": ["x"]}, "S.additionalProperties.$ref"),
        (OF_NODE | {"$ref": "#/$defs/n/properties/next"}, "S.$defs.n.properties.next.$ref"),
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


EXACTLY = Context(prec=700)
PREFERRED = ("", ".eE-0", "0123456789", "eE+0123456789")
COMPARISONS = {
    "minimum": lambda value, bound: value >= bound,
    "maximum": lambda value, bound: value <= bound,
    "exclusiveMinimum": lambda value, bound: value > bound,
    "exclusiveMaximum": lambda value, bound: value < bound,
    "multipleOf": lambda value, bound: EXACTLY.remainder(value, bound) == 0,
    "const": lambda value, constant: value == constant,
}


def _decimal(number: int | float) -> Decimal:
    return Decimal(repr(number))


def _matches(schema: dict[str, Any], value: Decimal) -> bool:
    types = schema.get("type", "number")
    if types == "integer" and value != value.to_integral_value(context=EXACTLY):
        return False
    return (
        all(
            COMPARISONS[keyword](value, _decimal(bound))
            for keyword, bound in schema.items()
            if keyword in COMPARISONS
        )
        and ("enum" not in schema or value in map(_decimal, schema["enum"]))
        and all(_matches(option, value) for option in schema.get("allOf", ()))
        and ("anyOf" not in schema or any(_matches(option, value) for option in schema["anyOf"]))
    )


TOKENIZER = LLTokenizer("byte")
MAX_BYTES = 60


def answers(schema: Any, *, seed: int, num_walks: int, preferred: str) -> Iterator[str]:
    """Returns those of ``num_walks`` answers that end within ``MAX_BYTES``. ``preferred``
    characters are chosen more often."""
    start, chosen = LLMatcher(TOKENIZER, grammar_text([json_part(schema)])), random.Random(seed)
    assert not start.is_error(), start.get_error()
    for _ in range(num_walks):
        matcher, answer = start.deep_copy(), ""
        while len(answer) < MAX_BYTES and not matcher.is_stopped():
            bias = matcher.compute_logit_bias()
            tokens = [token for token in range(128) if bias[token]]
            if matcher.is_accepting() and (not tokens or chosen.random() < 0.15):
                break
            liked = [token for token in tokens if chr(token) in preferred]
            token = chosen.choice(liked if liked and chosen.random() < 0.6 else tokens)
            assert matcher.consume_token(token), matcher.get_error()
            answer += chr(token)
        if matcher.is_accepting() or matcher.is_stopped():
            yield answer


def _check(schema: dict[str, Any], *, seed: int = 1, num_walks: int = 15) -> None:
    enforced = checked_schema(schema)
    for preferred in PREFERRED:
        for answer in answers(enforced, seed=seed, num_walks=num_walks, preferred=preferred):
            if not answer or answer[0] not in "-0123456789":
                continue  # no number: the schema's bounds do not concern it
            exponent = answer.lower().partition("e")[2]
            assert len(exponent) <= 3 or not schema.keys() & COMPARISONS.keys(), answer
            if len(exponent) <= 3:
                assert _matches(schema, Decimal(answer)), answer


BOUNDED: list[dict[str, Any]] = [
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5},
    {"type": "number", "exclusiveMinimum": 1, "exclusiveMaximum": 1.062},
    {"type": "number", "minimum": -0.99, "exclusiveMaximum": 0.0},
    {"type": "number", "allOf": [{"exclusiveMinimum": -0.0}, {"maximum": 0.1}]},
    {"type": "number", "minimum": -5.5, "exclusiveMaximum": -5},
    {"type": "integer", "minimum": 0, "maximum": 2**63 - 1},
    {"type": "integer", "minimum": -(2**53) + 1, "maximum": 2**53 - 1},
    {"type": ["integer", "number"], "maximum": -11},
    {"type": ["integer", "number"], "enum": [-57000000000000.0, 0.5, 10, 0]},
    {"type": "number", "multipleOf": 0.01, "minimum": -3.14, "maximum": 1e6},
    {"type": "number", "multipleOf": 1000, "minimum": -8765432109876543},
    {"type": "integer", "multipleOf": 7, "exclusiveMaximum": 0},
    {"const": -0.0},
]


def test_answers_are_within_the_bounds() -> None:
    for schema in BOUNDED:
        _check(schema, num_walks=40)


NUMBERS = (
    st.integers(-20, 20)
    | st.decimals(-20, 20, places=3).map(float)
    | st.sampled_from([0.0, -0.0, 0.1, 99, 100, 9.999, 1e3, 1e17, -1e15, 2**53, 1e-7, -2.5e-6])
)
LIMITS = {
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), NUMBERS),
    "multipleOf": st.sampled_from([0.01, 0.5, 1, 2.5, 3, 7, 1.25, 100]),
    "enum": st.lists(NUMBERS, min_size=1, max_size=3),
    "const": NUMBERS,
}
TYPES = st.sampled_from(["integer", "number"])
LIMITED = st.fixed_dictionaries({}, optional={"type": TYPES, **LIMITS})
SCHEMAS = st.fixed_dictionaries(
    {"type": TYPES},
    optional={
        **LIMITS,
        "allOf": st.lists(LIMITED, min_size=1, max_size=2),
        "anyOf": st.lists(LIMITED, min_size=1, max_size=2),
    },
).filter(lambda schema: "anyOf" not in schema or "multipleOf" not in str(schema))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schema=SCHEMAS, seed=st.integers(0, 1000))
def test_any_numbers_that_are_accepted_are_enforced(schema: dict[str, Any], seed: int) -> None:
    try:
        _check(schema, seed=seed, num_walks=3)
    except SchemaError:
        return
