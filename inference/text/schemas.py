"""Which JSON schemas can be enforced exactly, and where one that cannot goes wrong.

    walk every subschema: only known keywords ─▶ compile the whole ─▶ on failure, find the keyword

Draft 2020-12 and what older drafts spell differently. llguidance enforces; it ignores keywords that
it does not know, so those are refused here. What it knows and how: its docs/json_schema.md.
"""

from __future__ import annotations

from typing import Any

from inference.text.compiling import OUR_OPTIONS, TOO_DEEP, grammar_text, json_part, problem_of
from inference.text.errors import SchemaError
from inference.text.schema_culprit import find_culprit
from inference.text.schema_places import (
    ONE_SCHEMA,
    SCHEMA_LISTS,
    SCHEMA_MAPS,
    STRUCTURE,
    Place,
    Schema,
    subschemas,
)

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
"""They say nothing of which values are valid. Nor do keywords that start with ``x-``, but for
llguidance's own, which would loosen what is enforced."""
KNOWN = STRUCTURE | ASSERTIONS | ANNOTATIONS
VACUOUS: dict[str, tuple[Any, ...]] = {
    "propertyNames": (True, {}, {"type": "string"}),
    "uniqueItems": (False,),
    "nullable": (False,),
}
"""Keywords that are not enforced, with those of their values that forbid nothing; schema libraries
write them."""

MAX_STEPS = 100
"""From the root to any subschema; llguidance reads no more than 128."""
WORDINGS = {
    "oneOf constraints are not supported. Enable 'coerce_one_of' option to approximate oneOf with "
    "anyOf": "oneOf is supported where at most one of its schemas can match a value; use anyOf"
}
"""Ours for messages of llguidance that speak of its own options."""


def checked_schema(schema: Schema) -> Schema:
    """``schema`` without what forbids nothing. Raises ``SchemaError`` naming the keyword that is
    invalid or cannot be enforced."""
    pending = [Place((), schema)]
    while pending:
        place = pending.pop()
        _check_keywords(place)
        pending += subschemas(place)
    enforced: Schema = _without_vacuous(schema)
    problem = problem_of(grammar_text([json_part(enforced)]))
    if problem is not None:
        raise SchemaError(find_culprit(enforced, problem), WORDINGS.get(problem, problem))
    return enforced


def _without_vacuous(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in SCHEMA_MAPS:
            kept[keyword] = {name: _without_vacuous(inner) for name, inner in value.items()}
        elif keyword in SCHEMA_LISTS and isinstance(value, list):
            kept[keyword] = [_without_vacuous(inner) for inner in value]
        elif keyword in ONE_SCHEMA:
            kept[keyword] = _without_vacuous(value)
        elif keyword not in VACUOUS:
            kept[keyword] = value
    return kept


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
    if keyword in VACUOUS and value in VACUOUS[keyword]:
        return None
    if keyword not in KNOWN and (keyword == OUR_OPTIONS or not keyword.startswith("x-")):
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
