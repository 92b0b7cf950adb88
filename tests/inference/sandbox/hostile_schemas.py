"""JSON schemas that a stranger might send: real ones, mutated towards what breaks compilers."""

from __future__ import annotations

import contextlib
import json
import random
from typing import Any

from inference.text.schemas.schema_check import KNOWN
from tests.inference.text.schemas.test_schema_check import PERSON

ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "lines": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": {
                    "sku": {"type": "string", "pattern": "[a-z0-9]+(-[a-z0-9]+)*"},
                    "price": {"type": "number", "exclusiveMinimum": 0, "multipleOf": 0.01},
                    "count": {"type": "integer", "minimum": 1, "maximum": 999},
                },
                "required": ["sku", "price", "count"],
            },
        },
        "state": {"oneOf": [{"const": "open"}, {"const": "closed"}, {"type": "integer"}]},
    },
    "patternProperties": {"^x-": {"type": "string"}},
    "required": ["id", "lines"],
}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": ["number", "string", "boolean"]},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["value"],
            "additionalProperties": False,
        }
    },
}
PAIR = {"type": "array", "prefixItems": [{"type": "string"}, {"type": "number"}], "items": False}
BOTH = {"allOf": [{"type": "object", "properties": {"a": {"type": "string"}}}, {"required": ["a"]}]}
SEEDS: list[Any] = [PERSON, ORDER, TREE, PAIR, BOTH, {"type": "string"}, {"enum": [1, "a", None]}]

NUMBERS: list[Any] = [
    *(0, -0.0, 1, -1, 0.1, 1e-7, 1e-320, 1e300, -1e300, 1.5, 2**31, 2**53, 2**53 + 1, 10**20),
    *(2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**40, -(2**63), -(2**63) + 1, -(2**63) - 1, -(10**40)),
    *(4503599627370497.5, 123456789.987654321, 5e-324, 1.7976931348623157e308),
]
TEXTS = [
    *("", "a", "😀" * 50, "a" + "😀" * 50, "ab" + "😀" * 50, "x" * 99 + "é", "\0", "\ud800", "퟿"),
    *("{" * 200, '"\\', "#", "#/$defs/node", "#/nothing", "#/$defs/pet", "https://a/b", "x" * 5000),
    *("object", "array", "string", "integer", "number", "null", "date-time", "ipv6", "regex"),
]
PATTERNS = [
    *("(a{1,1000}){1,1000}", "((a{1,1000}b?){1,1000}c?){1,1000}", ".*a.{1000}b.{1000}c", "(" * 300),
    *("a{999999999}", "a{1,18446744073709551616}", r"\p{L}{1,500}\p{N}{1,500}", "(?=a)b", r"(a)\1"),
    *("^$", "^", "a|" * 1000, "[^\\x00-\\xff]", "(a*)*b", "(a+)+$", "[ab]*a[ab]{40}"),
    *(r"\uD83D", "["),
    *("(?i)" + "ß" * 50, "[" + "😀-😏" * 20 + "]", "(.|\n)*" * 30, "(?s).{0,100000}", r"\w{5000}"),
]
SIZES = ["minProperties", "maxProperties", "minItems", "maxItems", "minLength", "maxLength"]
UNKNOWN = ["not", "if", "additionalItems", "uniqueItems", "x-guidance"]
KEYWORDS = sorted({*KNOWN, *SIZES, *UNKNOWN})
COUNTS = [10**9, 10**6, 100_000, 5000, 2**31, 2**32, 2**64]
MAX_DEPTH = 130
MAX_CHARACTERS = 200_000


class SchemaMutator:
    """Each ``make`` is a whole schema; the same ``seed`` makes the same ones."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def make(self) -> Any:
        while True:
            with contextlib.suppress(RecursionError):
                schema = _copied(self._random.choice(SEEDS))
                for _ in range(self._random.choice([1, 1, 2, 3, 6])):
                    schema = self._mutated(schema)
                if len(json.dumps(_nested(schema))) < MAX_CHARACTERS:
                    return schema

    def _mutated(self, schema: Any) -> Any:
        places = list(_containers(schema))
        if not places:
            return {"anyOf": [schema, self._value()]}
        place, pick = self._random.choice(places), self._random
        kind = pick.randrange(8)
        if kind == 0:
            return self._nested(schema)
        if isinstance(place, dict) and kind <= 5:
            place |= self._members(kind, schema)
        elif keys := list(place) if isinstance(place, dict) else list(range(len(place))):
            place[pick.choice(keys)] = self._value() if kind == 6 else _copied(pick.choice(places))
        return schema

    def _members(self, kind: int, schema: Any) -> dict[str, Any]:
        pick = self._random
        match kind:
            case 1:
                return {pick.choice(KEYWORDS): self._value()}
            case 2:
                return {"pattern": pick.choice(PATTERNS), "type": "string"}
            case 3:
                return {pick.choice(SIZES): pick.choice(COUNTS)}
            case 4:
                return {pick.choice(["const", "enum"]): self._constant()}
        options = [self._value(), *_some(schema, pick)]
        return {pick.choice(["anyOf", "allOf", "oneOf"]): options}

    def _value(self) -> Any:
        pick = self._random
        match pick.randrange(6):
            case 0:
                return pick.choice(NUMBERS)
            case 1:
                return pick.choice(TEXTS)
            case 2:
                return _copied(pick.choice(SEEDS))
            case 3:
                return [pick.choice(NUMBERS + TEXTS) for _ in range(pick.randrange(4))]
            case 4:
                return {pick.choice(KEYWORDS): pick.choice(NUMBERS + TEXTS + PATTERNS)}
        return pick.choice([None, True, False, {}, []])

    def _constant(self) -> Any:
        pick = self._random
        values = [pick.choice(NUMBERS + TEXTS) for _ in range(pick.choice([1, 3, 2000]))]
        return pick.choice([values, values[0], {"a": values[0]}, [[values[0]]]])

    def _nested(self, schema: Any) -> Any:
        keyword = self._random.choice(["items", "anyOf", "properties", "allOf"])
        for _ in range(self._random.choice([3, 30, 99, MAX_DEPTH])):
            inner = {"a": schema} if keyword == "properties" else schema
            schema = {keyword: [schema] if keyword.endswith("Of") else inner}
        return schema


def _nested(value: Any) -> Any:
    """Nested deeper than a serializer's added depth."""
    for _ in range(100):
        value = [value]
    return value


def _copied(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _containers(schema: Any) -> Any:
    pending = [schema]
    while pending:
        inner = pending.pop()
        if isinstance(inner, dict | list):
            yield inner
            pending += inner.values() if isinstance(inner, dict) else inner


def _some(schema: Any, pick: random.Random) -> list[Any]:
    places = [place for place in _containers(schema) if isinstance(place, dict)]
    return [_copied(pick.choice(places)) for _ in range(pick.randrange(3)) if places]
