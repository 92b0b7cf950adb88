"""Which JSON schemas can be enforced exactly, and where one that cannot goes wrong.

    walk every subschema: only known keywords ─▶ compile the whole ─▶ on failure, find the keyword

Draft 2020-12 and what older drafts spell differently. llguidance enforces; it ignores keywords that
it does not know, so those are refused here. What it knows and how: its docs/json_schema.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from inference.text.compiling import find_problem, problem_of
from inference.text.errors import SchemaError

Schema = dict[str, Any] | bool

OPTIONS = {"whitespace_pattern": r"( |\n {0,32})?"}
"""White space between JSON tokens: a space, or a new line with its indent. Bounded, because small
models else write white space until they are cut."""

ONE_SCHEMA = frozenset({"items", "additionalItems", "additionalProperties"})
SCHEMA_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
SCHEMA_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
ASSERTIONS = frozenset(
    {
        *("$ref", "type", "enum", "const", "required", "minProperties", "maxProperties"),
        *("minItems", "maxItems", "minLength", "maxLength", "pattern", "format"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    }
)
ANNOTATIONS = frozenset(
    {
        *("title", "description", "default", "example", "examples", "deprecated", "readOnly"),
        *("writeOnly", "$schema", "$id", "id", "$anchor", "$comment", "discriminator"),
    }
)
"""They say nothing of which values are valid. So do keywords that start with ``x-``."""
KNOWN = ONE_SCHEMA | SCHEMA_LISTS | SCHEMA_MAPS | ASSERTIONS | ANNOTATIONS
OUR_OPTIONS = "x-guidance"
"""llguidance's own keyword: it would loosen what is enforced."""

MAX_STEPS = 100
"""From the root to any subschema; llguidance reads no more than 128."""
MAX_ATTEMPTS = 200
"""Compilations in search of one culprit; past it the path ends early."""
TOO_DEEP = "the schema is nested too deeply"
WORDINGS = {
    "oneOf constraints are not supported. Enable 'coerce_one_of' option to approximate oneOf with "
    "anyOf": "oneOf is supported where at most one of its schemas can match a value; use anyOf"
}
"""Ours for messages of llguidance that speak of its own options."""


@dataclass(frozen=True, slots=True)
class Place:
    """A subschema and how it is reached from the root."""

    steps: tuple[str | int, ...]
    schema: Any

    def child(self, *steps: str | int) -> Place:
        schema = self.schema
        for step in steps:
            schema = schema[step]
        return Place((*self.steps, *steps), schema)


def json_part(schema: Schema | None) -> dict[str, Any]:
    """One of a grammar's parts: JSON that ``schema`` allows, any object for ``None``."""
    if schema is None:
        schema = {"type": "object"}
    elif isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    return {"json_schema": {**schema, OUR_OPTIONS: OPTIONS}}


def grammar_text(parts: Sequence[dict[str, Any]]) -> str:
    """Raises ``SchemaError`` for a schema that is nested too deeply to be written."""
    try:
        return json.dumps({"grammars": list(parts)})
    except RecursionError:
        raise SchemaError((), TOO_DEEP) from None


def check_schema(schema: Schema) -> None:
    """Raises ``SchemaError`` naming the keyword that is invalid or cannot be enforced."""
    pending = [Place((), schema)]
    while pending:
        place = pending.pop()
        _check_keywords(place)
        pending += subschemas(place)
    problem = problem_of(grammar_text([json_part(schema)]))
    if problem is not None:
        raise SchemaError(_culprit(schema, problem), WORDINGS.get(problem, problem))


def subschemas(place: Place) -> Iterator[Place]:
    if not isinstance(place.schema, dict):
        return
    for keyword, value in place.schema.items():
        if keyword in SCHEMA_LISTS and isinstance(value, list):
            yield from (place.child(keyword, index) for index in range(len(value)))
        elif keyword in SCHEMA_MAPS and isinstance(value, dict):
            yield from (place.child(keyword, name) for name in value)
        elif keyword in ONE_SCHEMA:
            yield place.child(keyword)


def _check_keywords(place: Place) -> None:
    if len(place.steps) > MAX_STEPS:
        raise SchemaError(place.steps, TOO_DEEP)
    if isinstance(place.schema, bool):
        return
    if not isinstance(place.schema, dict):
        raise SchemaError(place.steps, "a schema is an object or a boolean")
    for keyword, value in place.schema.items():
        reason = _refusal(keyword, value, place.schema)
        if reason is not None:
            raise SchemaError((*place.steps, keyword), reason)


def _refusal(keyword: str, value: Any, schema: dict[str, Any]) -> str | None:
    if keyword == OUR_OPTIONS or (keyword not in KNOWN and not keyword.startswith("x-")):
        return f"the keyword {keyword!r} is not supported"
    if keyword in SCHEMA_MAPS and not isinstance(value, dict):
        return f"{keyword!r} is an object of schemas"
    if keyword in SCHEMA_LISTS - ONE_SCHEMA and not (isinstance(value, list) and value):
        return f"{keyword!r} is a list of schemas, at least one"
    if keyword == "$ref" and not (isinstance(value, str) and value.startswith("#")):
        return "only references inside the schema, as in #/$defs/name, are supported"
    if keyword == "format" and not _takes_strings(schema.get("type")):
        return f"the format {value!r} is not enforced for values that are no strings"
    return None


def _takes_strings(declared: Any) -> bool:
    types = declared if isinstance(declared, list) else [declared]
    return declared is None or "string" in types


def _culprit(root: Schema, problem: str) -> tuple[str | int, ...]:
    """The deepest place without which the whole has another problem or none."""
    attempts = iter(range(MAX_ATTEMPTS))

    def is_to_blame(place: Place, replacement: Any) -> bool:
        if next(attempts, None) is None:
            return False
        without = _replaced(root, place.steps, replacement)
        return find_problem(grammar_text([json_part(without)])) != problem

    here = Place((), root)
    while True:
        blamed = (child for child in subschemas(here) if is_to_blame(child, True))
        deeper = next(blamed, None)
        if deeper is None:
            break
        here = deeper
    for keyword in sorted(here.schema, key=_is_structure) if isinstance(here.schema, dict) else ():
        if is_to_blame(here, {k: v for k, v in here.schema.items() if k != keyword}):
            return (*here.steps, keyword)
    return here.steps


def _is_structure(keyword: str) -> bool:
    """Blamed last: without these a schema says little, and most problems go away."""
    return keyword in ONE_SCHEMA | SCHEMA_LISTS | SCHEMA_MAPS | {"type"}


def _replaced(schema: Any, steps: tuple[str | int, ...], replacement: Any) -> Any:
    """A copy of ``schema`` with ``replacement`` where ``steps`` lead."""
    if not steps:
        return replacement
    copied = schema.copy()
    copied[steps[0]] = _replaced(schema[steps[0]], steps[1:], replacement)
    return copied
